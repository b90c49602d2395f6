"""onnxruntime-genai on a model that its own builder exports from the bundle's f32 weights.

Left to itself, genai runs on one thread's speed where the environment names the budget: the session is told the number
of threads, as its documentation's `intra_op_num_threads` does.
"""

import json
import shutil
import sys

import numpy
import onnxruntime_genai
from importlib.metadata import version

from .. import checkpoint, threads
from ..bundle import derive, references_directory, run, unsupported
from . import Base

# Our precision → the builder's.
PRECISIONS = {"f32": "fp32", "int4": "int4"}


class Adapter(Base):
    FRAMEWORK = "genai"
    FEATURES = None
    OPTIONS = ("threads",)

    @staticmethod
    def runtime():
        return {
            "binding": f"onnxruntime-genai {version('onnxruntime-genai')}",
            "library": f"onnxruntime {version('onnxruntime')}",
            "library_path": onnxruntime_genai.onnxruntime_genai.__file__, "cpu_capability": None,
        }

    @classmethod
    def weights_file(cls, bundle, settings):
        precision = settings["precision"]
        if precision not in PRECISIONS:
            raise unsupported(f"genai's builder makes no {precision} model that runs on a CPU")
        name = f"genai-{precision}-{bundle.address('f32')}"
        directory = references_directory() / "derived" / name
        return derive(directory, "model.onnx.data", lambda staging: export(bundle, precision, staging))

    def __init__(self, bundle, settings, weights_file):
        self._threads, self._precision = settings["threads"], settings["precision"]
        config = onnxruntime_genai.Config(str(weights_file.parent))
        self._as_it_comes = settings.get("options", {}).get("threads") == "default"
        if not self._as_it_comes:
            options = {"intra_op_num_threads": self._threads}
            config.overlay(json.dumps({"model": {"decoder": {"session_options": options}}}))
        before = threads.count()
        self._model = onnxruntime_genai.Model(config)
        if self._as_it_comes and before is not None:
            # onnxruntime's pool has a thread fewer than it computes with: the caller is one of them.
            self._threads = threads.count() - before + 1
        self._vocabulary = bundle.vocabulary

    def in_effect(self):
        own = ", its own int4 (blocks of 32, activations in int8)" if self._precision == "int4" else ""
        return {
            "precision": self._precision, "activations": "f32", "kv_cache_precision": "f32",
            "kv_cache": "preallocated", "device": self._model.device_type.lower(), "threads": self._threads,
            "jit": "graph optimisation: genai's default", "optimised": True,
            "weight_storage": f"ONNX model exported by genai's builder{own}",
            "kernels": ["onnxruntime CPU", "GroupQueryAttention"],
            "changed_defaults": [
                "prune_lm_head when exporting: logits of the last position alone, which generation needs",
                *([] if self._as_it_comes else ["intra_op_num_threads: it does not find the thread budget (genai-default)"]),
            ],
        }

    def begin(self, batch, capacity):
        parameters = onnxruntime_genai.GeneratorParams(self._model)
        # One more than is filled: a sequence of the full length counts as finished.
        parameters.set_search_options(max_length=capacity + 1, batch_size=batch, do_sample=False)
        self._batch = batch
        self._generator = onnxruntime_genai.Generator(self._model, parameters)

    def append(self, tokens, every):
        if not every:
            return self._step(tokens)
        # The exported head gives the last position alone.
        columns = [self._step([[row[at]] for row in tokens]).copy() for at in range(len(tokens[0]))]
        return numpy.concatenate(columns, axis=1)

    def _step(self, tokens):
        ids = numpy.array(tokens, dtype=numpy.int32)
        self._generator.append_tokens(ids if self._batch > 1 else ids[0])
        return self._generator.get_logits()

    def argmax(self, logits):
        return logits[:, -1].argmax(axis=-1).tolist()

    def values(self, logits):
        return numpy.ascontiguousarray(logits, dtype=numpy.float32).tobytes()


def export(bundle, precision, staging):
    """Runs genai's builder on the bundle's f32 weights."""
    source = checkpoint.checkpoint(bundle, checkpoint.weights_file(bundle, "f32"), "f32")
    from_sha256 = bundle.verify("f32.safetensors")
    cache = staging / "cache"
    # Offline, and with a home of its own: the environment of a worker has none.
    environment = {"HF_HUB_OFFLINE": "1", "HOME": str(cache)}
    builder = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", str(source), "-o", str(staging)]
    builder += ["-p", PRECISIONS[precision], "-e", "cpu", "-c", str(cache)]
    # Logits of the last position alone: what generation needs.
    run(builder + ["--extra_options", "prune_lm_head=true"], environment)
    shutil.rmtree(cache, ignore_errors=True)
    return {
        "from": "f32.safetensors", "from_sha256": from_sha256, "same_values": precision == "f32",
        "by": f"onnxruntime-genai {version('onnxruntime-genai')}'s model builder",
    }

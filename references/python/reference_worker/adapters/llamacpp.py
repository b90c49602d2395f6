"""llama.cpp through its C interface, driven as llama.cpp's own programs drive it: a pool of threads, a batch,
`llama_decode`, and the logits where it left them."""

import os

import numpy

from .. import gpus, llama_library
from ..bundle import WorkerError, references_directory, run, unsupported
from . import Base

PRECISIONS = ("f32", "bf16", "f16", "int8", "int4", "file")
# GGML's numbers of the types that a KV cache is kept in.
CACHE_TYPES = {"f32": 0, "f16": 1}
FLASH_ATTENTION_OFF = 0
# The whole model on one GPU.
SPLIT_MODE_NONE = 0
# More than any model has.
ALL_LAYERS = 9999
# Default of llama_context_params, as long as it suffices.
BATCH = 2048


@llama_library.LogCallback
def _to_stderr(level, text, _):
    WARN = 3
    if level >= WARN:
        os.write(2, text)


class Adapter(Base):
    FRAMEWORK = "llamacpp"
    # Of the architectures that reference-gguf writes, which refuses the others.
    FEATURES = ("experts",)
    GPU = True

    @classmethod
    def runtime(cls):
        cls.api, path, version = llama_library.load()
        cls.api.llama_log_set(_to_stderr, None)
        cls.cpu_library = llama_library.load_backends(cls.api, path.parent)
        cls.api.llama_backend_init()
        features = [part.strip() for part in cls.api.llama_print_system_info().decode().split("|")]
        # CPU : SSE3 = 1 | ... with the name of a device before its first.
        used = [part.split(":")[-1].split("=")[0].strip() for part in features if part.endswith("= 1")]
        return {
            "binding": "ctypes", "library": f"llama.cpp {version}", "library_path": str(path),
            "cpu_capability": f"{cls.cpu_library}: {', '.join(used)}",
        }

    @classmethod
    def weights_file(cls, bundle, settings):
        precision = settings["precision"]
        if precision not in PRECISIONS:
            raise unsupported(f"GGUF has no {precision}")
        # Refuses a precision that the bundle lacks.
        bundle.weights_path(precision)
        references = references_directory()
        tool = [references / "bin" / "reference-gguf", bundle.directory, precision, references / "derived"]
        return type(references)(run([str(part) for part in tool]))

    def __init__(self, bundle, settings, weights_file):
        self._settings, self._vocabulary, self._context_length = settings, bundle.vocabulary, bundle.context
        api, parameters = self.api, self.api.llama_model_default_params()
        self._device = settings["device"]
        numbers = gpus.numbers(self._device)
        if numbers and not api.llama_supports_gpu_offload():
            raise unsupported("this llama.cpp was built for the CPU alone (docs/reference/frameworks.md)")
        parameters.n_gpu_layers = ALL_LAYERS if numbers else 0
        if numbers:
            parameters.split_mode, parameters.main_gpu = SPLIT_MODE_NONE, numbers[0]
        self._model = api.llama_model_load_from_file(str(weights_file).encode(), parameters)
        if not self._model:
            raise WorkerError(f"llama.cpp cannot load {weights_file}")
        # Its usual cache is f16 and its flash attention computes in f16: neither is f32, by 4e-2 in a logit. Below
        # f32 both are left as they come.
        self._exact = settings["precision"] == "f32"
        self._cache_type = "f32" if self._exact else "f16"
        self._context, self._room, self._batch = None, (0, 0), None
        self._pool = llama_library.new_threadpool(api, settings["threads"])

    def in_effect(self):
        weights = "the file's own blocks, in a GGUF" if self._settings["precision"] == "file" else "GGUF"
        return {
            "precision": self._settings["precision"], "activations": "f32", "kv_cache_precision": self._cache_type,
            "kv_cache": "preallocated", "device": self._device, "threads": self._settings["threads"],
            "jit": "none (llama.cpp builds a graph and interprets it)", "optimised": None,
            "weight_storage": f"mapped: {weights} derived from the bundle; repacked where llama.cpp has kernels for it",
            "kernels": [
                self.cpu_library if self._device == "cpu" else "ggml-cuda",
                "no flash attention" if self._exact else "flash attention: auto",
            ],
            "changed_defaults": [
                "KV cache in f32 and no flash attention: both are f16 by default, which is not f32",
            ] if self._exact else [],
        }

    def begin(self, batch, capacity):
        if (batch, capacity) == self._room:
            self.api.llama_memory_clear(self.api.llama_get_memory(self._context), False)
        else:
            self._make_context(batch, capacity)
            self._room = (batch, capacity)
        self._filled = 0

    def _make_context(self, batch, capacity):
        api = self.api
        if self._context:
            api.llama_batch_free(self._batch)
            api.llama_free(self._context)
        parameters = api.llama_context_default_params()
        parameters.n_ctx = batch * capacity
        parameters.n_batch = max(BATCH, batch * capacity)
        parameters.n_seq_max = batch
        parameters.n_threads = parameters.n_threads_batch = self._settings["threads"]
        parameters.type_k = parameters.type_v = CACHE_TYPES[self._cache_type]
        if self._exact:
            parameters.flash_attn_type = FLASH_ATTENTION_OFF
        self._context = api.llama_init_from_model(self._model, parameters)
        if not self._context:
            raise WorkerError("llama.cpp cannot make a context")
        api.llama_attach_threadpool(self._context, self._pool, None)
        self._batch = api.llama_batch_init(batch * capacity, 0, 1)

    def append(self, tokens, every):
        api, batch, count = self.api, self._batch, len(tokens[0])
        index, rows = 0, []
        for sequence, row in enumerate(tokens):
            for position, token in enumerate(row):
                wanted = every or position + 1 == count
                batch.token[index] = token
                batch.pos[index] = self._filled + position
                batch.n_seq_id[index] = 1
                batch.seq_id[index][0] = sequence
                batch.logits[index] = wanted
                if wanted:
                    rows.append(index)
                index += 1
        batch.n_tokens = index
        status = api.llama_decode(self._context, batch)
        if status != 0:
            raise WorkerError(f"llama_decode failed with {status}")
        self._filled += count
        shape = (self._vocabulary,)
        # Waits for the computation; views of llama.cpp's own buffer.
        return [numpy.ctypeslib.as_array(api.llama_get_logits_ith(self._context, row), shape) for row in rows]

    def argmax(self, logits):
        return [int(row.argmax()) for row in logits]

    def values(self, logits):
        return b"".join(row.tobytes() for row in logits)

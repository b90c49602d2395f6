"""whisper.cpp through its C interface, in the libraries of the wheel pywhispercpp: `whisper_set_mel`, `whisper_encode`,
`whisper_decode` and the logits where it left them. The wheel's own Python calls decode one token and return one number.

Of this library a file in f32 ends the process (`GGML_ASSERT` in `im2col`), so that f16 is what there is."""

import ctypes
import importlib.util
import os
import struct
from ctypes import POINTER, Structure, c_bool, c_char_p, c_float, c_int, c_size_t, c_void_p
from pathlib import Path

import numpy

from ..bundle import WorkerError, bad_input, derive, mlp_of, references_directory, unsupported
from ..llama_library import LogCallback
from ..weights import Weights
from . import Base

# Their structures have the layout below.
VERSION = "1.8."
MAGIC = 0x67676D6C
# Of the filters that make a spectrogram of samples. It is given one.
FREQUENCIES = 201
# Parts of the bundle's names and whisper.cpp's, in the order in which they are replaced.
NAMES = (
    ("model.", ""), ("layers.", "blocks."), ("self_attn_layer_norm", "attn_ln"),
    ("encoder_attn_layer_norm", "cross_attn_ln"), ("final_layer_norm", "mlp_ln"), ("encoder_attn", "cross_attn"),
    ("self_attn", "attn"), ("q_proj", "query"), ("k_proj", "key"), ("v_proj", "value"), ("out_proj", "out"),
    ("fc1", "mlp.0"), ("fc2", "mlp.2"), ("embed_positions.weight", "positional_embedding"),
    ("embed_tokens", "token_embedding"), ("encoder.layer_norm", "encoder.ln_post"), ("decoder.layer_norm", "decoder.ln"),
)


class Heads(Structure):
    _fields_ = [("n_heads", c_size_t), ("heads", c_void_p)]


class ContextParams(Structure):
    _fields_ = [
        ("use_gpu", c_bool), ("flash_attn", c_bool), ("gpu_device", c_int), ("dtw_token_timestamps", c_bool),
        ("dtw_aheads_preset", c_int), ("dtw_n_top", c_int), ("dtw_aheads", Heads), ("dtw_mem_size", c_size_t),
    ]


SIGNATURES = {
    "whisper_context_default_params": (ContextParams,),
    "whisper_decode": (c_int, c_void_p, POINTER(c_int), c_int, c_int, c_int),
    "whisper_encode": (c_int, c_void_p, c_int, c_int),
    "whisper_get_logits": (POINTER(c_float), c_void_p),
    "whisper_init_from_file_with_params": (c_void_p, c_char_p, ContextParams),
    "whisper_log_set": (None, LogCallback, c_void_p),
    "whisper_print_system_info": (c_char_p,),
    "whisper_set_mel": (c_int, c_void_p, POINTER(c_float), c_int, c_int),
    "whisper_version": (c_char_p,),
}


@LogCallback
def _to_stderr(level, text, _):
    WARN = 3
    if level >= WARN:
        os.write(2, text)


class Adapter(Base):
    FRAMEWORK = "whispercpp"
    HEARS = True

    @classmethod
    def runtime(cls):
        cls.api, path = load()
        cls.api.whisper_log_set(_to_stderr, None)
        features = [part.split(":")[-1] for part in cls.api.whisper_print_system_info().decode().split("|")]
        used = [feature.split("=")[0].strip() for feature in features if feature.strip().endswith("= 1")]
        return {
            "binding": "ctypes", "library": f"whisper.cpp {cls.api.whisper_version().decode()}",
            "library_path": str(path), "cpu_capability": ", ".join(used),
        }

    @classmethod
    def weights_file(cls, bundle, settings):
        if not bundle.audio:
            raise unsupported("whisper.cpp computes models that hear, Whisper's, and no others")
        if settings["precision"] != "f16":
            raise unsupported("whisper.cpp computes no f32 and no bf16: its convolutions are f16 (ask for f16)")
        own = bundle.weights_path("f16")
        directory = references_directory() / "derived" / f"ggml-{bundle.address('f16')}"

        def make(staging):
            write(bundle, Weights(own), staging / "ggml-model.bin")
            words = "whisper.cpp's layout; norms, biases and tables of positions in f32"
            return {"from": own.name, "from_sha256": bundle.verify(own.name), "same_values": True, "by": words}

        return derive(directory, "ggml-model.bin", make)

    def __init__(self, bundle, settings, weights_file):
        self._vocabulary, self._bands, self._threads = bundle.vocabulary, bundle.audio["bands"], settings["threads"]
        self._frames = bundle.audio["frames"]
        parameters = self.api.whisper_context_default_params()
        parameters.use_gpu = parameters.flash_attn = False
        self._context = self.api.whisper_init_from_file_with_params(str(weights_file).encode(), parameters)
        if not self._context:
            raise WorkerError(f"whisper.cpp cannot load {weights_file}")

    def in_effect(self):
        return {
            "precision": "f16", "activations": "f32", "kv_cache_precision": "f16", "kv_cache": "preallocated",
            "device": "cpu", "threads": self._threads, "jit": "none (whisper.cpp builds a graph and interprets it)",
            "optimised": None,
            "weight_storage": "copied from a ggml file derived from the bundle; repacked where ggml has kernels for it",
            "kernels": ["ggml-cpu", "no flash attention", "GELU by a table in f16"],
            "changed_defaults": ["no flash attention: it attends to the cache's padding behind the audio, too"],
        }

    def begin(self, batch, capacity):
        self._filled = 0

    def listen(self, frames):
        numbers = (c_float * len(frames)).from_buffer(frames)
        self._check("whisper_set_mel", self.api.whisper_set_mel(self._context, numbers, self._frames, self._bands))
        self._check("whisper_encode", self.api.whisper_encode(self._context, 0, self._threads))

    def append(self, tokens, every):
        if not every:
            return [self._decode(tokens[0])]
        # It keeps the logits of the last token alone.
        return [numpy.stack([self._decode([token]).copy() for token in tokens[0]])]

    def _decode(self, tokens):
        """A view of whisper.cpp's own buffer, which the next call writes over."""
        count = len(tokens)
        ids = (c_int * count)(*tokens)
        self._check("whisper_decode", self.api.whisper_decode(self._context, ids, count, self._filled, self._threads))
        self._filled += count
        logits = self.api.whisper_get_logits(self._context)
        return numpy.ctypeslib.as_array(logits, (count, self._vocabulary))[-1]

    def _check(self, name, status):
        if status != 0:
            raise WorkerError(f"{name} failed with {status}")

    def argmax(self, logits):
        return [int(logits[0].argmax())]

    def values(self, logits):
        return logits[0].tobytes()


def load():
    """The library of the wheel, with its path."""
    wheel = importlib.util.find_spec("_pywhispercpp")
    files = sorted((Path(wheel.origin).parent / "pywhispercpp.libs").glob("libwhisper-*")) if wheel else []
    if not files:
        raise bad_input("the wheel pywhispercpp is not here: run `photofinish setup --references=whispercpp`")
    library = ctypes.CDLL(str(files[0]))
    for name, (result, *arguments) in SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    version = library.whisper_version().decode()
    if not version.startswith(VERSION):
        raise bad_input(f"{files[0]} is whisper.cpp {version}, and this worker is written for {VERSION}x")
    return library, files[0]


def write(bundle, weights, target):
    """A file as `models/convert-h5-to-ggml.py` of whisper.cpp writes it. Its filters are 0 and the texts of its tokens
    are left out: it is given spectrograms and ids."""
    model, audio = bundle.model, bundle.audio
    hidden, heard = model["hidden_size"], model["audio_encoder"]
    sizes = (
        model["vocab_size"], audio["frames"] // 2, hidden, audio["heads"], audio["layers"], model["max_positions"],
        hidden, model["heads"], len(model["layers"]), audio["bands"],
    )
    widths = {mlp_of(model)["width"], mlp_of(heard)["width"]}
    if widths != {4 * hidden} or heard["heads"] != model["heads"] or not model["tied_embeddings"]:
        raise unsupported(
            "whisper.cpp computes MLPs four times as wide as the model, as many heads in the decoder as in the encoder, "
            "and no head over the vocabulary but the embedding"
        )
    with open(target, "wb") as file:
        file.write(struct.pack("<12i", MAGIC, *sizes, 1))
        file.write(struct.pack("<2i", audio["bands"], FREQUENCIES) + bytes(4 * audio["bands"] * FREQUENCIES))
        file.write(struct.pack("<i", 0))
        for tensor in weights.names:
            values, name = weights.tensor(tensor), tensor
            if tensor.endswith("k_proj.bias"):
                if values.any():
                    raise unsupported(f"whisper.cpp has no biases of keys, and {tensor} is not 0")
                continue
            for ours, theirs in NAMES:
                name = name.replace(ours, theirs)
            half = values.ndim > 1 and "embed_positions" not in tensor
            if ".conv" in tensor and tensor.endswith("bias"):
                values = values.reshape(-1, 1)
            values = values.astype(numpy.float16 if half else numpy.float32)
            file.write(struct.pack("<3i", values.ndim, len(name), int(half)))
            file.write(struct.pack(f"<{values.ndim}i", *values.shape[::-1]) + name.encode() + values.tobytes())

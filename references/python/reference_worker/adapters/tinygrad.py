"""tinygrad on its device CPU, whose kernels clang compiles, or on CUDA, whose kernels NVRTC compiles: the decoder of
`tinygrad_decoder`, each step captured by TinyJit, as its own language model does it."""

import ctypes
import os

from .. import tinygrad_compiler

# Of several devices it would choose an accelerator.
os.environ["DEV"] = "CPU"
KEPT = tinygrad_compiler.choose()

import numpy
import tinygrad
from importlib.metadata import PackageNotFoundError, files, version
from tinygrad import Device, Tensor, TinyJit, UOp
from tinygrad.helpers import BEAM, CACHELEVEL, NUM_CPU_THREADS
from tinygrad.uop.ops import Ops

from .. import gpus
from ..bundle import unsupported
from ..tinygrad_decoder import ELEMENTS, Decoder
from ..weights import Weights
from . import Base


class Adapter(Base):
    FRAMEWORK = "tinygrad"
    HIDDEN_STATES = True
    SHARDS = True
    GPU = True
    # The kind of device that the job asks for.
    _kind = "CPU"

    @staticmethod
    def configure(settings):
        if gpus.numbers(settings["device"]):
            Adapter._kind = "CUDA"
            show_nvrtc()

    @staticmethod
    def runtime():
        if Adapter._kind == "CPU":
            tinygrad_compiler.require_compiler()
        device = Device[Adapter._kind]
        return {
            "binding": f"tinygrad {version('tinygrad')}",
            "library": f"tinygrad {version('tinygrad')}, {type(device.renderer).__name__}",
            "library_path": tinygrad.__file__, "cpu_capability": device.renderer.target.arch,
        }

    @classmethod
    def weights_file(cls, bundle, settings):
        precision = settings["precision"]
        if precision not in ELEMENTS:
            raise unsupported(f"tinygrad multiplies by no {precision} codes with scales as bundles hold them")
        return bundle.weights_path(precision)

    def __init__(self, bundle, settings, weights_file):
        # Into so many pieces it may cut a kernel. They run one after the other, on the thread that calls.
        NUM_CPU_THREADS.value = settings["threads"]
        self._jit, self._hidden = settings["jit"], settings.get("hidden_states", False)
        self._precision = settings["precision"]
        shards = settings.get("shards", 1)
        chosen = gpus.numbers(settings["device"]) or range(shards)
        devices = tuple(Device.canonicalize(f"{Adapter._kind}:{index}") for index in chosen)
        self._weights = Weights(weights_file)
        self._decoder = Decoder(bundle.model, self._weights, ELEMENTS[self._precision], devices)
        self._rooms, self._steps = {}, {}

    def in_effect(self):
        devices, on_cpu = self._decoder.devices, Adapter._kind == "CPU"
        element = "+".join(name for name, known in ELEMENTS.items() if known in self._decoder.elements())
        # A CPU's kernels run on the calling thread, unless its experimental queues are switched on, a thread for each.
        queues = sum(len(Device[device].workers) for device in devices) if on_cpu else 0
        told = {
            "precision": element, "activations": element, "kv_cache_precision": element, "kv_cache": "preallocated",
            "device": "cpu" if on_cpu else gpus.named(map(number, devices)), "threads": max(queues, 1),
            "optimised": self._jit,
            "jit": "TinyJit: steps captured at their second call" if self._jit else "none: each step is scheduled anew",
            "weight_storage": self._decoder.storage(),
            "kernels": [
                f"compiled by {tinygrad_compiler.name() if on_cpu else 'NVRTC'}, BEAM {BEAM.value}",
                KEPT if CACHELEVEL.value else "no kernels kept on disk (CACHELEVEL 0)",
            ],
        }
        if on_cpu:
            told["changed_defaults"] = ["DEV CPU: of several devices it would choose an accelerator"]
            told["kernels"].append(f"run on {f'{queues} queues' if queues else 'the caller'}")
        held = shard_bytes(self._decoder.tensors)
        return told if len(devices) == 1 else {**told, "shard_bytes": [held[device] for device in devices]}

    def begin(self, batch, capacity):
        self._room = (batch, capacity)
        if self._room not in self._rooms:
            with tinygrad_compiler.compiling(self._precision):
                self._rooms[self._room] = self._decoder.caches(batch, capacity)
        self._filled = 0

    def append(self, tokens, every):
        count = len(tokens[0])
        step = self._step(count, every)
        position = UOp.variable("start", 0, self._room[1] - 1).bind(self._filled)
        self._filled += count
        with tinygrad_compiler.compiling(self._precision):
            self._outputs = step(self._decoder.ids(tokens).realize(), position)
        return self._outputs[0].numpy()

    def _step(self, count, every):
        key = (*self._room, count, every and count > 1)
        if key not in self._steps:
            step = self._computed(self._rooms[self._room], every)
            self._steps[key] = TinyJit(step) if self._jit else step
        return self._steps[key]

    def _computed(self, caches, every):
        def step(ids, start):
            outputs = self._decoder.forward(ids, start, caches, every, self._hidden)
            Tensor.realize(*outputs)
            return outputs

        return step

    def argmax(self, logits):
        return logits[:, -1].argmax(axis=-1).tolist()

    def values(self, logits):
        return numpy.ascontiguousarray(logits, numpy.float32).tobytes()

    def hidden_states(self):
        return [numpy.ascontiguousarray(state.numpy(), numpy.float32).tobytes() for state in self._outputs[1:]]

    def compiled(self):
        if not self._jit:
            return None
        phrases = []
        for (batch, capacity, count, every), step in self._steps.items():
            if step.captured is not None:
                what = "decode" if count == 1 else f"prefill of {count} tokens{', all logits' if every else ''}"
                phrases.append(f"{what}, batch {batch}, cache of {capacity}")
        return phrases


def show_nvrtc():
    """Names tinygrad the NVRTC that was installed beside it; where there is none, it looks for the system's."""
    try:
        installed = [str(file.locate()) for file in files("nvidia-cuda-nvrtc") or []]
    except PackageNotFoundError:
        return
    for file in installed:
        if "/libnvrtc.so" in file:
            os.environ["NVRTC_PATH"] = file
        elif "/libnvrtc-builtins.so" in file:
            # NVRTC looks for it by name alone, and finds what the process has already loaded.
            ctypes.CDLL(file)


def number(device):
    """The number in a device's name; tinygrad leaves the first one's out."""
    return int(device.partition(":")[2] or 0)


def shard_bytes(tensors):
    """Bytes of the tensors' buffers by device."""
    held = {}
    for tensor in tensors:
        uop = tensor.uop.src[0] if tensor.uop.op is Ops.UNSHARD else tensor.uop
        buffer = uop.base.realized
        for part in getattr(buffer, "bufs", [buffer]):
            held[part.device] = held.get(part.device, 0) + part.nbytes
    return held

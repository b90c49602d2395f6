"""jax: a decoder in plain jax whose steps XLA compiles, once for each shape, as models are written in jax.

jax has no setting for its threads. XLA's pool has one for each CPU that the process may use when the pool is made, and
that set of CPUs is the limit which its maintainers recommend (jax-ml/jax#1539).
"""

import os
import shlex
from functools import partial

import jax
import numpy
from jax import numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding
from jaxlib import _jax

from .. import gpus, jax_decoder, kernel_cache, threads
from ..bundle import WorkerError, bad_input, unsupported
from ..jax_profile import Profile
from ..jax_steps import POLICIES, BothWays
from ..weights import Weights
from . import Base

ELEMENTS = {"f32": jnp.float32, "bf16": jnp.bfloat16, "f16": jnp.float16}
# What jax finds of earlier processes, before it compiles.
KEPT = kernel_cache.found("JAX_COMPILATION_CACHE_DIR")
# As XLA names the threads of its pool.
POOL = "XLAEigen"


class Adapter(Base):
    FRAMEWORK = "jax"
    OPTIONS = ("cache", "xla_flags", "memory_fraction")
    HIDDEN_STATES = True
    FEATURES = (
        "attention_cap", "attention_scale", "embedding_multiplier", "fused_gate_up", "logits_cap", "logits_multiplier",
        "longrope", "norm_offset", "norms_behind", "partial_rotation", "residual_multiplier", "two_rotations",
        "unrotated_layers", "whole_norms", "window",
    )
    BOTH_WAYS = True
    SHARDS = True
    GPU = True

    @staticmethod
    def configure(settings):
        # XLA reads them when it is initialised, and ends a process that names one it does not know.
        if flags := xla_flags(settings):
            os.environ["XLA_FLAGS"] = " ".join(flags)
        fraction = gpus.memory_fraction(settings)
        if gpus.numbers(settings["device"]):
            if fraction is not None:
                os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = str(fraction)
            # Else it takes three quarters of a GPU's memory when it starts, whatever it needs.
            os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
            jax.config.update("jax_platforms", "cuda")
            narrow(settings["threads"])
            return
        shards = settings.get("shards", 1)
        if jax.config.jax_num_cpu_devices not in (shards, -1) or shards > 1:
            jax.config.update("jax_num_cpu_devices", shards)
        narrow(settings["threads"])

    @staticmethod
    def runtime():
        if not jax.config.jax_platforms:
            jax.config.update("jax_platforms", "cpu")
        jax.devices()
        return {
            "binding": f"jax {jax.__version__}", "library": f"XLA of jaxlib {jax.lib.__version__}",
            "library_path": _jax.__file__, "cpu_capability": None,
        }

    @classmethod
    def weights_file(cls, bundle, settings):
        if settings["precision"] not in ELEMENTS:
            raise unsupported(f"jax multiplies by no {settings['precision']} codes with scales as bundles hold them")
        return bundle.weights_path(settings["precision"])

    def __init__(self, bundle, settings, weights_file):
        self._model, self._jit, self._shards = bundle.model, settings["jit"], settings.get("shards", 1)
        if self._model is None:
            raise bad_input("the job describes no model: the driver is older than this worker")
        self._devices = self._chosen(gpus.numbers(settings["device"]))
        self._check(settings)
        cache = settings.get("options", {}).get("cache", "static")
        if cache not in POLICIES:
            raise bad_input(f"option cache is {cache!r}; it may be {', '.join(POLICIES)}")
        if not bundle.causal and cache != "static":
            raise unsupported("masked diffusion keeps nothing from one pass to the next: there is no cache to vary, name jax")
        steps = POLICIES[cache] if bundle.causal else BothWays
        self._mesh = jax.sharding.Mesh(self._devices, (jax_decoder.AXIS,))
        element = numpy.dtype(ELEMENTS[settings["precision"]])
        arrays, self._division = jax_decoder.parameters(self._model, Weights(weights_file), self._shards)
        # numpy has no bfloat16: such weights come as their bits.
        arrays = jax.tree.map(lambda array: array.view(element), arrays)
        # numpy's own memory is used where jax can.
        self._parameters = jax.device_put(arrays, jax.tree.map(self._place, self._division), may_alias=True)
        self._mapped = mapped_share(arrays, self._parameters)
        self._decoder, self._is_long = jax_decoder.Decoder(self._model, self._shards), False
        self._steps = steps(self._decoder, self._model, element, settings.get("hidden_states", False))
        self._compiled, self._words, self._room, self._hidden = {}, [], None, []

    def _chosen(self, numbers):
        """The devices that hold a share of the weights each: these GPUs, or those that the CPU plays."""
        there = jax.devices()
        missing = [number for number in numbers if number >= len(there)]
        if missing:
            raise WorkerError(f"jax finds {len(there)} GPUs, so there is no {gpus.named(missing)}")
        return [there[number] for number in numbers] or there[: self._shards]

    def _check(self, settings):
        if self._shards == 1:
            return
        reason = jax_decoder.undivided(self._model, self._shards)
        if reason is None and not self._jit:
            reason = "jax divides a step over devices when it compiles it, and jit is off"
        if reason is not None:
            raise unsupported(reason)
        if len(self._devices) != self._shards:
            raise WorkerError(f"jax has {len(self._devices)} devices where {self._shards} were asked for")

    def _place(self, division):
        if self._shards == 1:
            return SingleDeviceSharding(self._devices[0])
        return NamedSharding(self._mesh, division)

    def in_effect(self):
        weights = jax.tree.leaves(self._parameters)
        element = next(name for name, known in ELEMENTS.items() if weights[0].dtype == known)
        used = {device for array in weights for device in array.devices()}
        on_cpu = {device.platform for device in used} == {"cpu"}
        return {
            "precision": element, "activations": element, "kv_cache_precision": element,
            "kv_cache": self._steps.POLICY, "threads": computing() if on_cpu else allowed(),
            "device": "cpu" if on_cpu else gpus.named(sorted(device.id for device in used)),
            "jit": "XLA, once for each shape" if self._jit else "none: op by op", "optimised": self._jit,
            "weight_storage": storage(self._mapped),
            "kernels": ["XLA CPU" if on_cpu else "XLA CUDA", KEPT, *flags_in_effect(), *pools(used)],
            "shard_bytes": shard_bytes(weights) if self._shards > 1 else None,
            "changed_defaults": [] if on_cpu else [
                "XLA_PYTHON_CLIENT_PREALLOCATE false: it would take three quarters of a GPU's memory, whatever it needs",
            ],
        }

    def begin(self, batch, capacity):
        if (batch, capacity) != self._room:
            blank = lambda form: jnp.zeros(form.shape, form.dtype, device=self._place(self._steps.division))
            self._empty = jax.tree.map(blank, self._steps.empty(batch, capacity))
            self._room = (batch, capacity)
        elif self._steps.IN_PLACE:
            # What lies in the buffers is behind the end of the sequence.
            self._empty = self._kept
        self._kept, self._filled = self._empty, 0
        self._is_long = self._decoder.begin(capacity)

    def append(self, tokens, every):
        ids = numpy.array(tokens, numpy.int32)
        filled = numpy.int32(self._filled)
        key, words = self._steps.shape(*self._room, self._filled, ids.shape[1], every)
        step, keep = self._compiled.get((key, self._is_long)) or self._prepared(key, words, ids)
        logits, self._hidden, new = step(self._parameters, self._kept, ids, filled)
        self._kept = keep(self._kept, new, filled)
        self._filled += ids.shape[1]
        # Waits until they are there. Rows that fill the devices up to a whole number are cut off.
        return numpy.asarray(logits)[..., : self._model["vocab_size"]]

    def _prepared(self, key, words, ids):
        steps, whole = self._steps, PartitionSpec()
        kept, logits = steps.division, PartitionSpec(None, None, jax_decoder.AXIS)
        step, keep = steps.step(key), steps.keep
        if self._jit:
            inputs = self._parameters, self._kept, ids, numpy.int32(0)
            # Programs of one name could not be told apart in a profile.
            step.__name__ = f"step_{len(self._compiled)}"
            step = self._jitted(step, (self._division, kept, whole, whole), (logits, whole, kept)).lower(*inputs)
            placed = partial(jax.ShapeDtypeStruct, sharding=self._place(kept))
            new = jax.tree.map(lambda form: placed(form.shape, form.dtype), step.out_info[2])
            keep = self._jitted(keep, (kept, kept, whole), kept, donated=steps.IN_PLACE)
            step, keep = step.compile(), keep.lower(self._kept, new, inputs[-1]).compile()
            self._words.append(words + (", long" if self._is_long else ""))
        self._compiled[key, self._is_long] = step, keep
        return step, keep

    def _jitted(self, function, divided, results, donated=False):
        if self._shards > 1:
            function = jax.shard_map(function, mesh=self._mesh, in_specs=divided, out_specs=results)
        return jax.jit(function, donate_argnums=(0,) if donated else ())

    def gpu_allocated(self):
        told = [device.memory_stats() for device in self._devices]
        if not all(stats and "peak_bytes_in_use" in stats for stats in told):
            return None
        return {
            "in_use_bytes": sum(stats["bytes_in_use"] for stats in told),
            "peak_bytes": sum(stats["peak_bytes_in_use"] for stats in told),
        }

    def begin_profile(self, directory):
        self._profile = Profile(directory)

    def end_profile(self):
        return self._profile.end([step.as_text() for step, _ in self._compiled.values()] if self._jit else [])

    def argmax(self, logits):
        return logits[:, -1].argmax(axis=-1).tolist()

    def array(self, logits):
        return logits

    def values(self, logits):
        return numpy.ascontiguousarray(logits).tobytes()

    def hidden_states(self):
        return [numpy.asarray(state, numpy.float32).tobytes() for state in self._hidden]

    def compiled(self):
        return list(self._words) if self._jit else None


def xla_flags(settings):
    """Those of the option `xla_flags`, each `--name=value`."""
    flags = shlex.split(settings.get("options", {}).get("xla_flags", ""))
    if wrong := [flag for flag in flags if not flag.startswith("--xla") or "=" not in flag]:
        raise bad_input(f"option xla_flags has {wrong[0]!r}: each flag is --xla_NAME=VALUE, with a space between two")
    return flags


def flags_in_effect():
    """The value that XLA has for each flag of its environment, by what it compiles with."""
    flags, told = shlex.split(os.environ.get("XLA_FLAGS", "")), {}
    if not flags:
        return []
    # Its parts are gone with it, even those that something else still refers to.
    options = _jax.CompileOptions()
    for line in str(options.executable_build_options.debug_options).splitlines():
        name, _, value = line.partition(": ")
        told[name] = value
    names = [flag.removeprefix("--").partition("=")[0] for flag in flags]
    return [f"{name} = {told.get(name, 'not told by XLA')}" for name in names]


def pools(devices):
    """The most that the pool of each GPU may hold."""
    limits = {device.id: (device.memory_stats() or {}).get("bytes_limit") for device in devices if device.platform != "cpu"}
    return [f"pool of {gpus.named([number])}: {limit / 1e9:.2f} GB at most" for number, limit in sorted(limits.items()) if limit]


def narrow(budget):
    """Leaves the process as many CPUs as the budget has threads, before jax makes its pool."""
    if hasattr(os, "sched_setaffinity"):
        allowed = sorted(os.sched_getaffinity(0))
        if len(allowed) > budget:
            os.sched_setaffinity(0, allowed[:budget])


def allowed():
    """CPUs that this process may use: XLA's host threads beside a GPU have no pool to be counted."""
    return len(os.sched_getaffinity(0))


def computing():
    """Threads that can compute at a time: those of XLA's pool, as far as there are CPUs for them."""
    pool = threads.named(POOL)
    if pool is None:
        raise WorkerError("the system does not report the threads of XLA's pool")
    return min(pool, allowed())


def mapped_share(arrays, parameters):
    """The share of the weights that jax uses where they lie in the mapped file, by the addresses of both."""
    pairs = list(zip(jax.tree.leaves(arrays), jax.tree.leaves(parameters)))
    same = lambda array, weight: len(weight.devices()) == 1 and weight.unsafe_buffer_pointer() == array.ctypes.data
    mapped = sum(array.nbytes for array, weight in pairs if same(array, weight))
    return mapped / sum(array.nbytes for array, _ in pairs)


def storage(mapped):
    if mapped == 1:
        return "the mapped file itself"
    return "one copy in memory" if mapped == 0 else f"{mapped:.0%} in the mapped file, the rest copied"


def shard_bytes(weights):
    """Bytes of weights on each device."""
    held = {}
    for shard in (shard for array in weights for shard in array.addressable_shards):
        held[shard.device.id] = held.get(shard.device.id, 0) + shard.data.nbytes
    return [held[device] for device in sorted(held)]

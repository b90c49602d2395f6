"""OpenVINO on its plug-in for CPUs: a stateful graph of its own operations, made from the model's description and
compiled by `compile_model`, driven by one inference request. Of a model that attends both ways it has no state.

An encoder is such a graph, too. Its texts are padded to the longest of their batch, with a mask, as users of exported
models pad them.

An ONNX file is read by `read_model`, and runs in the shapes that it comes with."""

import numpy
import openvino

from .. import openvino_encoder, openvino_graph, openvino_onnx
from ..bundle import WorkerError, bad_input, unsupported
from ..openvino_profile import Profile
from ..weights import Weights
from . import Base

PRECISIONS = ("f32", "bf16", "f16", "int8", "int4")
# What it computes with, and what the device must be able to do for it.
CAPABILITIES = {"f32": "FP32", "bf16": "BF16", "f16": "FP16"}
# What decides how it computes; a variant may leave these at their defaults, which follow the CPU.
ARITHMETIC = ("INFERENCE_PRECISION_HINT", "KV_CACHE_PRECISION", "DYNAMIC_QUANTIZATION_GROUP_SIZE")
CHANGED = {
    "INFERENCE_PRECISION_HINT": "it computes in the precision asked for, not in the CPU's",
    "KV_CACHE_PRECISION": "the cache is that of the others, not of 8 bits",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": "activations stay in that precision (openvino-default keeps the default)",
}
# Types of nodes that say how the model is computed, and element types of codes.
TOLD = (
    "FullyConnected", "MatMul", "ScaledDotProductAttention", "RoPE", "RMS", "MVN", "Convolution", "Deconvolution",
    "RNNSeq",
)
CODES = ("i8", "u4")
# The element types of the weights that its matrix products then say they have.
WEIGHTS = {"f32": "f32", "bf16": "bf16", "f16": "f16", "int8": "i8", "int4": "u4"}


class Adapter(Base):
    FRAMEWORK = "openvino"
    OPTIONS = ("arithmetic", "artefact")
    HIDDEN_STATES = True
    BOTH_WAYS = True
    ENCODES = True
    GRAPHS = True
    ENCODER_FEATURES = ("encoder", "relative_positions", "two_rotations", "fused_gate_up")

    @staticmethod
    def runtime():
        core = openvino.Core()
        return {
            "binding": f"openvino {openvino.__version__.split('-')[0]}",
            "library": f"OpenVINO {core.get_versions('CPU')['CPU'].build_number}",
            "library_path": openvino._pyopenvino.__file__,
            "cpu_capability": ", ".join(core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")),
        }

    @classmethod
    def weights_file(cls, bundle, settings):
        precision = settings["precision"]
        if bundle.graph:
            return settings.get("options", {}).get("artefact") or bundle.weights_path(precision)
        if precision not in PRECISIONS:
            raise unsupported(f"OpenVINO packs {precision} in another order than the bundle, so it cannot run its codes")
        computes = CAPABILITIES.get(precision, "FP32")
        if computes not in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
            raise unsupported(f"OpenVINO has no {precision} kernels for this CPU")
        return bundle.weights_path(precision)

    def __init__(self, bundle, settings, weights_file):
        self._precision = settings["precision"]
        arithmetic = settings.get("options", {}).get("arithmetic", "asked")
        if arithmetic not in ("asked", "default"):
            raise bad_input(f"option arithmetic is {arithmetic!r}, not asked or default")
        wanted = {"INFERENCE_NUM_THREADS": settings["threads"], "NUM_STREAMS": 1}
        if arithmetic == "asked":
            computes = self._precision if self._precision in CAPABILITIES else "f32"
            wanted |= dict(zip(ARITHMETIC, (computes, computes, 0)))
        self._changed = [f"{name} {plain(wanted[name])}: {why}" for name, why in CHANGED.items() if name in wanted]
        profiled = settings.get("profiled", False)
        if profiled:
            wanted["PERF_COUNT"] = "YES"
        self._encoder, self._graph = bundle.encoder, bundle.graph
        is_decoder = not self._encoder and not self._graph
        hidden_states = settings.get("hidden_states", False)
        if hidden_states and not is_decoder:
            raise unsupported("openvino gives the hidden states of decoders alone: name another framework")
        if self._graph:
            self._compiled = openvino_onnx.compiled(weights_file, wanted)
        else:
            # The graph's constants lie in the mapped file.
            self._weights = Weights(weights_file)
            if self._encoder:
                graph = openvino_encoder.built(bundle.model, self._weights, self._precision, profiled)
            else:
                graph = openvino_graph.built(bundle.model, self._weights, self._precision, hidden_states, profiled)
            self._compiled = openvino.Core().compile_model(graph, "CPU", wanted)
        self._effective = read_back(self._compiled, wanted)
        self._nodes = observed(self._compiled)
        if not self._graph and arithmetic == "asked":
            require_weights(self._nodes, self._precision, self._encoder)
        self._request = self._compiled.create_infer_request()
        self._profile = None
        self._cached = bundle.causal and is_decoder
        self._hidden = len(bundle.model["layers"]) + 1 if hidden_states else 0

    def in_effect(self):
        storage = "constants of the file, as OpenVINO reads it" if self._graph else "constants in the mapped file"
        computes, cache, group = (plain(self._compiled.get_property(name)) for name in ARITHMETIC)
        codes = int(group) > 0 and any(name.startswith("codes ") for name in self._nodes)
        pinned = self._compiled.get_property("ENABLE_CPU_PINNING")
        return {
            "precision": held(self._nodes, self._precision),
            "activations": f"{computes}, int8 in groups of {group} where weights are codes" if codes else computes,
            "kv_cache_precision": cache,
            "kv_cache": "growing" if self._cached else "none",
            "device": self._compiled.get_property("EXECUTION_DEVICES")[0].lower(),
            "threads": int(self._effective["INFERENCE_NUM_THREADS"]),
            "jit": "graph compiled by OpenVINO, which has no other way", "optimised": True,
            "weight_storage": f"{storage}; copied where a kernel wants another layout",
            "kernels": [
                *(f"{count} {name}" for name, count in sorted(self._nodes.items())),
                f"CPU pinning {'on' if pinned else 'off'}",
                *(["texts padded to the longest of a batch"] if self._encoder else []),
            ],
            "changed_defaults": self._changed,
        }

    def begin(self, batch, capacity):
        if self._cached:
            self._request.reset_state()
        self._filled = 0
        # What a step of one token reads, filled in place.
        self._one = self._inputs(batch, 1, [0])

    def _inputs(self, batch, count, wanted):
        shapes = {"ids": (batch, count), "positions": (count,), "wanted": (len(wanted),)}
        inputs = {name: numpy.zeros(shape, numpy.int32) for name, shape in shapes.items()}
        if self._cached:
            inputs["beam_idx"] = numpy.arange(batch, dtype=numpy.int32)
        inputs["wanted"][:] = wanted
        return inputs, {name: openvino.Tensor(array, shared_memory=True) for name, array in inputs.items()}

    def append(self, tokens, every):
        count = len(tokens[0])
        if count == 1:
            arrays, tensors = self._one
        else:
            arrays, tensors = self._inputs(len(tokens), count, range(count) if every else [count - 1])
        arrays["ids"][:] = tokens
        arrays["positions"][:] = range(self._filled, self._filled + count)
        self._filled += count
        self._infer(tensors)
        return self._request.get_output_tensor(0).data

    def _infer(self, inputs):
        self._request.infer(inputs, share_inputs=True, share_outputs=True)
        if self._profile is not None:
            self._profile.note()

    def encode(self, texts, types, embed):
        pooling, output = openvino_encoder.asked(self._encoder, embed)
        inputs = openvino_encoder.inputs(texts, types, self._encoder, pooling)
        self._infer(inputs)
        # A copy: the next request computes into the same memory.
        vectors = numpy.array(self._request.get_tensor(output).data)
        if embed and embed["normalise"]:
            vectors /= numpy.maximum(numpy.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        if vectors.ndim == 3:
            vectors = [scores[: len(text)].ravel() for scores, text in zip(vectors, texts)]
        return vectors, inputs["ids"].size

    def rows(self, vectors):
        return [vector.tolist() for vector in vectors]

    def feed(self, inputs):
        ports = openvino_onnx.ports(self._compiled.inputs, [name for name, _ in inputs])
        self._fed = {port: openvino_onnx.tensor(port, array) for port, (_, array) in zip(ports, inputs)}

    def run_graph(self):
        self._infer(self._fed)

    def graph_outputs(self):
        outputs = self._graph["outputs"]
        ports = openvino_onnx.ports(self._compiled.outputs, [output["name"] for output in outputs])
        arrays = (self._request.get_tensor(port).data for port in ports)
        # Copies: the next run computes into the same memory.
        return [(output["name"], numpy.array(array, output["dtype"])) for output, array in zip(outputs, arrays)]

    def argmax(self, logits):
        return logits[:, -1].argmax(axis=-1).tolist()

    @classmethod
    def profiled(cls, settings):
        return {**settings, "profiled": True}

    def begin_profile(self, directory):
        self._profile = Profile(self._request, has_parts=not self._graph)

    def end_profile(self):
        return self._profile.end()

    def array(self, logits):
        return numpy.asarray(logits, numpy.float32)

    def values(self, logits):
        return self.array(logits).tobytes()

    def hidden_states(self):
        outputs = (self._request.get_output_tensor(1 + index).data for index in range(self._hidden))
        return [numpy.ascontiguousarray(states, numpy.float32).tobytes() for states in outputs]


def read_back(compiled, wanted):
    """The properties as the compiled model has them. One that is not what was set is an error: OpenVINO's defaults are
    other precisions than the model's, and another number of threads."""
    effective = {name: plain(compiled.get_property(name)) for name in wanted}
    for name, value in wanted.items():
        if effective[name] != str(value):
            raise WorkerError(f"OpenVINO was told {name}={value} and says {effective[name]}")
    return effective


def plain(value):
    """A property's value as it is written when it is set."""
    return value.get_type_name() if isinstance(value, openvino.Type) else str(value)


def observed(compiled):
    """What the compiled graph says of its nodes: types and precisions of those that compute, and how many constants
    are codes of a quantised weight."""
    counts = {}
    for node in compiled.get_runtime_model().get_ops():
        told = node.get_rt_info()
        layer, precision = (told[key].astype(str) for key in ("layerType", "runtimePrecision"))
        if layer in TOLD or (layer == "Const" and precision in CODES):
            name = "codes" if layer == "Const" else layer
            counts[f"{name} {precision}"] = counts.get(f"{name} {precision}", 0) + 1
    return counts


def held(nodes, asked):
    """The precision of the weights of its matrix products: the asked one, unless all of them say another."""
    kinds = {name.split()[1] for name in nodes if name.startswith("FullyConnected ")}
    others = [name for name, kind in WEIGHTS.items() if kinds == {kind}]
    return others[0] if others else asked


def require_weights(nodes, precision, encoder):
    """OpenVINO may unpack codes, or compute in another precision than the hint's, where it has no kernel."""
    others = {name.split()[1]: count for name, count in nodes.items() if name.startswith("FullyConnected ")}
    others.pop(WEIGHTS[precision], None)
    head = encoder and encoder.get("head")
    if head and precision not in CAPABILITIES and others.get("f32", 0) <= (2 if head.get("dense") else 1):
        # Those of a head are codes in no file.
        others.pop("f32", None)
    if others:
        kinds = ", ".join(f"{count} with {kind}" for kind, count in sorted(others.items()))
        raise unsupported(f"OpenVINO computes matrix products of this {precision} model with other weights: {kinds}")

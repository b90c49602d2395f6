"""What graphs of OpenVINO's own operations have in common, and the decoder as one, stateful, in the patterns that its
plug-in for CPUs fuses: keys and values are variables, read, reordered by `beam_idx`, concatenated and assigned around
scaled dot product attention. A model that attends both ways has neither variables nor `beam_idx`.

Inputs: `ids` i32 [batch, n], `positions` i32 [n], `beam_idx` i32 [batch], `wanted` i32 [m] (of the n positions, those
whose logits are computed). Outputs: `logits` f32 [batch, m, vocabulary], then hidden states f32 [batch, n, hidden] if
they are asked for.
"""

import numpy
import openvino
from openvino import opset13 as ops

from .bundle import mlp_of

# numpy's type of a tensor → OpenVINO's, where a tensor is not a code.
ELEMENTS = {"float32": openvino.Type.f32, "float16": openvino.Type.f16, "uint16": openvino.Type.bf16}
INT4_GROUP, INT4_OFFSET = 32, 8
ACTIVATIONS = {
    "silu": ops.swish, "relu": ops.relu, "tanh": ops.tanh, "gelu_tanh": lambda value: ops.gelu(value, "tanh"),
    "gelu_erf": lambda value: ops.gelu(value, "erf"),
}


def built(model, weights, precision, hidden_states, named=False):
    """`model`: the description. `weights`: the mapped file, which must outlive what is made here. `named`: whether every
    node is named by the part of the model that it is in, `layer 3 mlp/MatMul_52`."""
    return _Decoder(model, weights, precision, named).graph(hidden_states)


class Graph:
    """A transformer's layers. Its subclasses say in `_rotation`, `_mask` and `_kept` what attention sees."""

    def __init__(self, model, weights, precision, named=False):
        self._named = set() if named else None
        self._model, self._weights, self._precision = model, weights, precision

    def _layer(self, index, names, state):
        attend = lambda value: self._linear(names["output"], self._attention(index, names, value))
        norms = names["attention_norm"], names.get("attention_norm_behind")
        state = self._block(f"layer {index} attention", norms, state, attend)
        norms = names["mlp_norm"], names.get("mlp_norm_behind")
        return self._block(f"layer {index} mlp", norms, state, lambda value: self._mlp(names, value))

    def _block(self, part, norms, state, computed):
        """`state` and what is computed of it, with a norm before that or of the sum."""
        before, of_sum = norms
        normed = self._part(f"{part} norm", self._norm(before, state)) if before else state
        state = self._part(part, ops.add(state, computed(normed)))
        return self._part(f"{part} norm", self._norm(of_sum, state)) if of_sum else state

    def _mlp(self, names, value):
        inner, activated = self._linear(names["gate_up"], value), ACTIVATIONS[mlp_of(self._model)["activation"]]
        if mlp_of(self._model)["gated"]:
            gate, up = ops.split(inner, integer(2), 2).outputs()
            inner = ops.multiply(activated(gate), up)
        else:
            inner = activated(inner)
        return self._linear(names["down"], inner)

    def _attention(self, index, names, state):
        heads, kv_heads, size = (self._model[key] for key in ("heads", "kv_heads", "head_dim"))
        q, k, v = (
            ops.reshape(part, integers([0, 0, count, size]), True)
            for part, count in zip(self._projected(names["qkv"], state), (heads, kv_heads, kv_heads))
        )
        if names["q_norm"]:
            q, k = self._rms(names["q_norm"], q), self._rms(names["k_norm"], k)
        q, k, v = (ops.transpose(part, integers([0, 2, 1, 3])) for part in (q, k, v))
        if rotation := self._rotation(index):
            q, k = self._rotated(q, *rotation), self._rotated(k, *rotation)
        k, v = self._kept(index, k, v)
        visible = [] if (mask := self._mask(index)) is None else [mask]
        mixed = ops.scaled_dot_product_attention(q, self._for_each_query(k), self._for_each_query(v), *visible)
        return ops.reshape(ops.transpose(mixed, integers([0, 2, 1, 3])), integers([0, 0, heads * size]), True)

    def _projected(self, names, state):
        """Queries, keys and values, by one product."""
        heads, kv_heads, size = (self._model[key] for key in ("heads", "kv_heads", "head_dim"))
        lengths = integers([heads * size, kv_heads * size, kv_heads * size])
        return ops.variadic_split(self._linear(names, state), integer(2), lengths).outputs()

    def _for_each_query(self, every):
        """Keys or values, as often as query heads share them."""
        heads, kv_heads, size = (self._model[key] for key in ("heads", "kv_heads", "head_dim"))
        if heads == kv_heads:
            return every
        groups = integers([1, 1, heads // kv_heads, 1, 1])
        repeated = ops.broadcast(ops.unsqueeze(every, integer(2)), groups, broadcast_spec="BIDIRECTIONAL")
        return ops.reshape(repeated, integers([0, heads, -1, size]), True)

    def _cos_and_sin(self, frequencies, positions):
        """Each [1, 1, n, head_dim]."""
        angles = numpy.arange(self._model["max_positions"], dtype=numpy.float32)
        angles = numpy.outer(angles, numpy.array(frequencies, numpy.float32))
        angles = numpy.concatenate([angles, angles], axis=1)
        at = lambda table: ops.unsqueeze(ops.gather(ops.constant(table), positions, integer(0)), integers([0, 1]))
        return at(numpy.cos(angles)), at(numpy.sin(angles))

    def _rotated(self, heads, cos, sin):
        half = self._model["head_dim"] // 2
        first, second = ops.variadic_split(heads, integer(3), integers([half, half])).outputs()
        turned = ops.concat([ops.multiply(second, real(-1.0)), first], -1)
        return ops.add(ops.multiply(heads, cos), ops.multiply(turned, sin))

    def _norm(self, names, value):
        if self._model["rms_norm"]:
            return self._rms(names["weight"], value)
        centred = ops.mvn(value, integers([-1]), True, self._model["norm_epsilon"], "inside_sqrt")
        scaled = ops.multiply(centred, self._vector([names["weight"]]))
        return ops.add(scaled, self._vector([names["bias"]])) if names["bias"] else scaled

    def _rms(self, weight, value):
        mean = ops.reduce_mean(ops.power(value, real(2.0)), integers([-1]), True)
        root = ops.sqrt(ops.add(mean, real(self._model["norm_epsilon"])))
        return ops.multiply(self._vector([weight]), ops.multiply(value, ops.divide(real(1.0), root)))

    def _linear(self, names, value):
        product = ops.matmul(value, self._matrix(names["weights"]), False, True)
        return ops.add(product, self._vector(names["biases"])) if names["biases"] else product

    def _vector(self, names):
        """A tensor that is in f32 whatever the model is computed in, as the bundle has it or widened."""
        node, kind = self._as_it_lies(names)
        return node if kind == openvino.Type.f32 else ops.convert(node, "f32")

    def _matrix(self, names):
        """A weight, f32 [out, in] to the graph; in the form of decompression if the file holds it in fewer bits."""
        scale_names = [f"{name}.scale" for name in names]
        if not self._weights.holds(scale_names[0]):
            return self._vector(names)
        codes, scales = self._weights.stacked(names), self._weights.stacked(scale_names)
        if self._precision == "int8":
            node = _shared(codes, list(codes.shape), openvino.Type.i8)
            return ops.multiply(ops.convert(node, "f32"), _shared(scales.reshape(-1, 1)))
        rows, groups = scales.shape
        # The even column lies in the low half of a byte, as OpenVINO packs them.
        node = _shared(codes, [rows, groups, INT4_GROUP], openvino.Type.u4)
        zero = ops.convert(ops.constant(numpy.uint8(INT4_OFFSET)), "f32")
        centred = ops.subtract(ops.convert(node, "f32"), zero)
        whole = ops.multiply(centred, _shared(scales.reshape(rows, groups, 1)))
        return ops.reshape(whole, integers([rows, groups * INT4_GROUP]), False)

    def _as_it_lies(self, names):
        array = self._weights.stacked(names)
        kind = ELEMENTS[array.dtype.name]
        return _shared(array, list(array.shape), kind), kind

    def _part(self, name, value):
        """Names the nodes that lead to `value` and belong to no part yet, and returns it. None is for no part."""
        ahead = [] if self._named is None else [value]
        while ahead:
            node = ahead.pop()
            node = node.get_node() if isinstance(node, openvino.Output) else node
            if node.get_name() in self._named:
                continue
            self._named.add(node.get_name())
            if name is not None:
                node.set_friendly_name(f"{name}/{node.get_friendly_name()}")
            ahead += [entry.get_source_output() for entry in node.inputs()]
        return value


class _Decoder(Graph):
    def __init__(self, model, weights, precision, named):
        super().__init__(model, weights, precision, named)
        self._sinks = []
        self._ids, self._positions = parameter([-1, -1], "ids"), parameter([-1], "positions")
        self._wanted = parameter([-1], "wanted")
        self._inputs, self._visible = [self._ids, self._positions, self._wanted], None
        if model["causal"]:
            self._beams = parameter([-1], "beam_idx")
            self._inputs.append(self._beams)
            self._batch = ops.gather(ops.shape_of(self._ids), integers([0]), integer(0))
            self._visible = self._causal_mask()
        rotations = model["rotations"]
        self._rotary = self._cos_and_sin(rotations[0]["inverse_frequencies"], self._positions) if rotations else None
        # What all layers share is no part of one.
        for shared in (self._visible, *(self._rotary or ())):
            self._part(None, shared)

    def graph(self, hidden_states):
        model, names = self._model, self._model["tensors"]
        embedding = self._matrix([names["embedding"]])
        state = ops.gather(embedding, self._ids, integer(0))
        if names["position_embedding"]:
            learned = self._vector([names["position_embedding"]])
            state = ops.add(state, ops.gather(learned, self._positions, integer(0)))
        states = [self._part("embedding", state)]
        for index, layer in enumerate(names["layers"]):
            state = self._layer(index, layer, state)
            states.append(state)
        states[-1] = self._part("final norm", self._norm(names["final_norm"], state))
        head = embedding if model["tied_embeddings"] else self._matrix([names["lm_head"]])
        last = ops.gather(states[-1], self._wanted, integer(1))
        results = [ops.result(self._part("head", ops.matmul(last, head, False, True)), "logits")]
        if hidden_states:
            results += [ops.result(state, f"hidden.{index}") for index, state in enumerate(states)]
        return openvino.Model(results, self._sinks, self._inputs, "decoder")

    def _rotation(self, index):
        return self._rotary

    def _mask(self, index):
        return self._visible

    def _kept(self, index, k, v):
        if not self._model["causal"]:
            return k, v
        return self._cached(f"{index}.key", k), self._cached(f"{index}.value", v)

    def _cached(self, name, new):
        """What was kept and then `new`, [batch, heads, all, head_dim]; kept in its turn."""
        kv_heads, size = self._model["kv_heads"], self._model["head_dim"]
        empty = ops.broadcast(real(0.0), ops.concat([self._batch, integers([kv_heads, 0, size])], 0))
        past = ops.read_value(empty, name, openvino.Type.f32, openvino.PartialShape([-1, kv_heads, -1, size]))
        every = ops.concat([ops.gather(past, self._beams, integer(0)), new], 2)
        self._sinks.append(ops.assign(every, name))
        return every

    def _causal_mask(self):
        """f32 [batch, 1, n, all]: 0 where a position may look, and minus infinity after it.

        For every sequence, though all are equal: the kernel for bf16 (2026.4.1) reads a mask that is to be broadcast
        over the batch beyond its end.
        """
        last = ops.gather(self._positions, integer(-1), integer(0))
        keys = ops.range(integer(0), ops.add(last, numpy.int32(1)), integer(1), "i32")
        seen = ops.less_equal(ops.unsqueeze(keys, integer(0)), ops.unsqueeze(self._positions, integer(1)))
        mask = ops.unsqueeze(ops.select(seen, real(0.0), real(-numpy.inf)), integers([0, 1]))
        shape = ops.concat([self._batch, integers([1, 1, 1])], 0)
        return ops.broadcast(mask, shape, broadcast_spec="BIDIRECTIONAL")


def parameter(shape, name):
    node = ops.parameter(shape, openvino.Type.i32, name)
    node.output(0).set_names({name})
    return node


def _shared(array, shape=None, kind=openvino.Type.f32):
    """A constant over the array's own memory."""
    tensor = openvino.Tensor(array, openvino.Shape(shape or list(array.shape)), kind)
    return ops.constant(tensor, shared_memory=True)


def integer(value):
    return ops.constant(numpy.int32(value))


def integers(values):
    return ops.constant(numpy.array(values, numpy.int64))


def real(value):
    return ops.constant(numpy.float32(value))

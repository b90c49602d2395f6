"""The decoder in tinygrad's tensors, in the forms of its own language model (`tinygrad/llm`), in the precision of the
weights: a static cache that each layer stores into and then reads up to the position, which is a symbol, so that one kernel
serves all positions. In 16 bits, too, sums, norms and softmax are in f32, as tinygrad has them, and so are the logits."""

import numpy
from tinygrad import Tensor, dtypes

from .bundle import mlp_of, unsupported

ELEMENTS = {"f32": dtypes.float32, "bf16": dtypes.bfloat16, "f16": dtypes.float16}
# What tinygrad's kernels load at once; memory that is mapped elsewhere is copied.
ALIGNMENT = 64


class Decoder:
    """`weights` is the mapped file, of numbers of type `element`; it must outlive this. `devices` are names, over which
    the weights are divided."""

    def __init__(self, model, weights, element, devices):
        self._model, self._file, self._element, self.devices = model, weights, element, devices
        self._on_cpu = devices[0].startswith("CPU")
        require_divisible(model, len(devices))
        self._by_heads = model["heads"] % len(devices) == 0 and model["kv_heads"] % len(devices) == 0
        self.tensors, self._mapped, names = [], [], model["tensors"]
        self._embedding = self._tensor(self._array([names["embedding"]]), 0)
        learned = names["position_embedding"]
        self._positions = self._tensor(self._array([learned])) if learned else None
        self._head = self._embedding
        if not model["tied_embeddings"]:
            self._head = self._tensor(self._array([names["lm_head"]]), 0)
        self._final_norm = self._norm_weights(names["final_norm"])
        self._layers = [self._layer_weights(layer) for layer in names["layers"]]
        self._rotary = self._cos_and_sin() if model["rotations"] else None
        Tensor.realize(*self.tensors)

    def storage(self):
        """Where the weights are, in words."""
        if len(self.devices) > 1:
            return f"copied, divided over {', '.join(self.devices)}"
        if not self._on_cpu:
            return "copied to the GPU"
        copied = len(self.tensors) - len(self._mapped)
        return f"the mapped file, but for {copied} of {len(self.tensors)} tensors, copied" if copied else "the mapped file"

    def elements(self):
        """The types of the weights' numbers: one, unless something is wrong."""
        return {tensor.dtype for tensor in self.tensors}

    def caches(self, batch, capacity):
        """Keys and values of each layer, [2, batch, heads, capacity, head_dim] of the weights' type."""
        shape = (2, batch, self._model["kv_heads"], capacity, self._model["head_dim"])
        blank = lambda: Tensor.zeros(*shape, dtype=self._element)
        caches = [self._placed(blank(), 2 if self._by_heads else None).contiguous() for _ in self._layers]
        Tensor.realize(*caches)
        return caches

    def ids(self, tokens):
        return self._placed(Tensor(numpy.array(tokens, numpy.int32)))

    def forward(self, ids, start, caches, every, hidden_states):
        """Logits f32 [batch, n or 1, vocabulary], and the hidden states if they are asked for. `start` is the symbol of
        the first position."""
        count = ids.shape[1]
        state = self._embedding[ids]
        if self._positions is not None:
            state = state + self._positions[start : start + count]
        states = [state]
        for weights, cache in zip(self._layers, caches):
            state = self._layer(weights, state, start, cache)
            states.append(state)
        states[-1] = normed = self._norm(self._final_norm, state)
        wanted = normed if every else normed[:, -1:]
        logits = wanted.matmul(self._head.T, dtype=dtypes.float32)
        return [logits, *(states if hidden_states else [])]

    def _layer(self, weights, state, start, cache):
        state = state + self._attention(weights, self._norm(weights["attention_norm"], state), start, cache)
        normed = self._norm(weights["mlp_norm"], state)
        inner = self._activated(_linear(weights["gate_up"][0], normed))
        for up in weights["gate_up"][1:]:
            # Computed by itself, as tinygrad's own model does: in one kernel with `down` it would be for each of its rows.
            inner = inner.contiguous() * _linear(up, normed)
        return (state + _linear(weights["down"][0], inner)).contiguous()

    def _attention(self, weights, state, start, cache):
        model, (batch, count, _) = self._model, state.shape
        split = lambda part: _linear(part, state).reshape(batch, count, -1, model["head_dim"]).transpose(1, 2)
        q, k, v = (split(part) for part in weights["qkv"])
        if weights["q_norm"] is not None:
            q, k = self._rms(weights["q_norm"], q), self._rms(weights["k_norm"], k)
        if self._rotary:
            q, k = self._rotated(q, start), self._rotated(k, start)
        stored = cache[:, :, :, start : start + count, :].uop.store(Tensor.stack(k, v).uop)
        kept = Tensor(cache.uop.after(stored))[:, :, :, 0 : start + count, :]
        mask = None
        if count > 1:
            full = Tensor.full((1, 1, count, start + count), float("-inf"), dtype=self._element, buffer=False)
            mask = self._placed(full.triu(start + 1))
        mixed = q.scaled_dot_product_attention(kept[0], kept[1], attn_mask=mask, enable_gqa=True)
        return _linear(weights["output"][0], mixed.transpose(1, 2).reshape(batch, count, -1))

    def _rotated(self, heads, start):
        cos, sin = (table[start : start + heads.shape[2]] for table in self._rotary)
        first, second = heads.chunk(2, dim=-1)
        return (first * cos - second * sin).cat(second * cos + first * sin, dim=-1).cast(heads.dtype)

    def _activated(self, value):
        functions = {"silu": Tensor.silu, "relu": Tensor.relu, "gelu_tanh": Tensor.gelu, "gelu_erf": _gelu_erf}
        return functions[mlp_of(self._model)["activation"]](value)

    def _norm(self, weights, value):
        weight, bias = weights
        if self._model["rms_norm"]:
            return self._rms(weight, value)
        return value.float().layernorm(eps=self._model["norm_epsilon"]).cast(value.dtype) * weight + bias

    def _rms(self, weight, value):
        wide = value.float()
        normed = wide * (wide.square().mean(-1, keepdim=True) + self._model["norm_epsilon"]).rsqrt()
        return normed.cast(value.dtype) * weight

    def _cos_and_sin(self):
        """Each f32 [positions, head_dim / 2]."""
        frequencies = numpy.array(self._model["rotations"][0]["inverse_frequencies"], numpy.float32)
        angles = numpy.outer(numpy.arange(self._model["max_positions"], dtype=numpy.float32), frequencies)
        tables = [self._placed(Tensor(table(angles))) for table in (numpy.cos, numpy.sin)]
        return [table.realize() for table in tables]

    def _layer_weights(self, names):
        model = self._model
        heads, kv = model["heads"] * model["head_dim"], model["kv_heads"] * model["head_dim"]
        mlp = mlp_of(model)
        inner = mlp["width"]
        single = lambda name: None if name is None else self._tensor(self._array([name]))
        return {
            "attention_norm": self._norm_weights(names["attention_norm"]),
            "mlp_norm": self._norm_weights(names["mlp_norm"]),
            "q_norm": single(names["q_norm"]), "k_norm": single(names["k_norm"]),
            # Heads that devices cannot share evenly are computed on each, by parts of sums over the inputs.
            "qkv": self._linear_weights(names["qkv"], 0 if self._by_heads else 1, [heads, kv, kv]),
            "output": self._linear_weights(names["output"], 1),
            "gate_up": self._linear_weights(names["gate_up"], 0, [inner, inner][: 1 + mlp["gated"]]),
            "down": self._linear_weights(names["down"], 1),
        }

    def _norm_weights(self, names):
        return [name and self._tensor(self._array([name])) for name in (names["weight"], names["bias"])]

    def _linear_weights(self, names, axis, rows=None):
        """(weight, bias) of each part of so many rows; the outputs are divided over the devices (`axis` 0) or the
        inputs (1), after which the parts are summed and a bias is added once."""
        weight = self._array(names["weights"])
        bias = self._array(names["biases"]) if names["biases"] else None
        ends = numpy.cumsum(rows or [weight.shape[0]])
        of = lambda array, start, end, axis: None if array is None else self._tensor(array[start:end], axis)
        parts = zip([0, *ends], ends)
        return [(of(weight, start, end, axis), of(bias, start, end, 0 if axis == 0 else None)) for start, end in parts]

    def _array(self, names):
        return self._file.stacked(names)

    def _tensor(self, array, axis=None):
        """Over the file's own memory, or, divided, not aligned or for a GPU, a copy."""
        address = array.__array_interface__["data"][0]
        if len(self.devices) == 1 and self._on_cpu and address % ALIGNMENT == 0:
            tensor = Tensor.from_blob(address, array.shape, dtype=self._element, device=self.devices[0])
            self._mapped.append(array)
        else:
            # numpy has no bfloat16: such weights come as their bits.
            own = Tensor(array) if self._element != dtypes.bfloat16 else Tensor(array).bitcast(dtypes.bfloat16)
            tensor = self._placed(own, axis).contiguous()
        self.tensors.append(tensor)
        return tensor

    def _placed(self, tensor, axis=None):
        """On the device; divided along an axis over several, or whole on each."""
        return tensor.to(self.devices[0]) if len(self.devices) == 1 else tensor.shard(self.devices, axis)


def require_divisible(model, shards):
    sizes = {name: model[name] for name in ("hidden_size", "vocab_size")}
    sizes["width of the MLPs"] = mlp_of(model)["width"]
    sizes["size of all heads"] = model["heads"] * model["head_dim"]
    for name, size in sizes.items():
        if size % shards:
            raise unsupported(f"{name.replace('_', ' ')} is {size}, which {shards} devices cannot share equally")


def _linear(weights, value):
    weight, bias = weights
    product = value @ weight.T
    return product if bias is None else product + bias


def _gelu_erf(value):
    return 0.5 * value * (1 + (value * 0.5**0.5).erf())

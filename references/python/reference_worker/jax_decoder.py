"""A decoder in plain jax, from a job's description of the model (docs/reference/protocol.md): what one step computes.

How steps are compiled and which devices they run on is the adapter's affair. The heads, the columns of the MLP and
the vocabulary may be divided over devices: a step then runs once on each, on its own part of the weights, and adds up
what each has computed (`psum`). Heads that cannot be divided evenly are computed on each device; of their projections,
each device then has its own columns.
"""

import jax
import numpy
from jax import lax
from jax import numpy as jnp
from jax.sharding import PartitionSpec

from .bundle import mlp_of
from .jax_attention import Manner, Rotation, capped

AXIS = "shard"
ROWS, COLUMNS, WHOLE = PartitionSpec(AXIS), PartitionSpec(None, AXIS), PartitionSpec()

ACTIVATIONS = {
    "silu": jax.nn.silu,
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "gelu_erf": lambda x: jax.nn.gelu(x, approximate=False),
    "relu": jax.nn.relu,
}


def undivided(model, shards):
    """Why the model cannot be divided over so many devices, or None if it can."""
    sizes = {"hidden size": model["hidden_size"], "width of the MLPs": mlp_of(model)["width"]}
    sizes["size of all heads"] = model["heads"] * model["head_dim"]
    if form(model).get("whole_qk_norm"):
        return "the model has norms over all heads together, which are not divided over devices here"
    for name, size in sizes.items():
        if size % shards:
            return f"{name} {size} of the model cannot be divided over {shards} devices"
    return None


def form(model):
    """How the model computes what a plain layer has not (docs/reference/protocol.md)."""
    return model.get("form") or {}


def by_heads(model, shards):
    """Whether each device has heads of its own."""
    return model["heads"] % shards == 0 and model["kv_heads"] % shards == 0


def parameters(model, weights, shards):
    """The weights as numpy arrays, and how each is divided: two trees of one form.

    Whole weights are views of the mapped file. Of those that are fused, each device gets its own rows of every part.
    """
    names, head_dim = model["tensors"], model["head_dim"]
    qkv_rows = [model["heads"] * head_dim, *[model["kv_heads"] * head_dim] * 2]
    gate_up_rows = [mlp_of(model)["width"]] * (2 if mlp_of(model)["gated"] else 1)

    def fused(names, rows):
        return divided_rows(weights.stacked(names), rows, shards), ROWS

    def whole(names):
        return weights.stacked(names), WHOLE

    def linear(layer, weight, bias):
        return {"weight": weight(layer["weights"]), **({"bias": bias(layer["biases"])} if layer["biases"] else {})}

    def norm(names):
        return {part: (weights.tensor(name), WHOLE) for part, name in names.items() if name}

    def vocabulary(name):
        rows = weights.tensor(name)
        missing = -len(rows) % shards
        return (numpy.concatenate([rows, numpy.zeros_like(rows[:missing])]) if missing else rows), ROWS

    def layer(names):
        qkv, gate_up = (lambda n: fused(n, qkv_rows)), (lambda n: fused(n, gate_up_rows))
        columns = lambda n: (weights.stacked(n), COLUMNS)
        own_heads = by_heads(model, shards)
        parts = {
            "qkv": linear(names["qkv"], *((qkv, qkv) if own_heads else (columns, whole))), "output": linear(names["output"], columns, whole),
            "gate_up": linear(names["gate_up"], gate_up, gate_up), "down": linear(names["down"], columns, whole),
        }
        norms = ("attention_norm", "attention_norm_behind", "mlp_norm", "mlp_norm_behind")
        parts |= {name: norm(names[name]) for name in norms if names.get(name)}
        return parts | {name: norm({"weight": names[name]}) for name in ("q_norm", "k_norm") if names[name]}

    tree = {
        "embedding": vocabulary(names["embedding"]), "final_norm": norm(names["final_norm"]),
        "layers": [layer(of) for of in names["layers"]],
    }
    if names["position_embedding"]:
        tree["position_embedding"] = weights.tensor(names["position_embedding"]), WHOLE
    if not model["tied_embeddings"]:
        tree["lm_head"] = vocabulary(names["lm_head"])
    is_pair = lambda value: isinstance(value, tuple)
    return [jax.tree.map(lambda pair: pair[index], tree, is_leaf=is_pair) for index in (0, 1)]


def divided_rows(stacked, rows, shards):
    """Parts that lie one after the other, `rows` of each, so that each device's share of all parts lies together."""
    if shards == 1:
        return stacked
    parts = numpy.split(stacked, numpy.cumsum(rows)[:-1])
    return numpy.concatenate([numpy.split(part, shards)[shard] for shard in range(shards) for part in parts])


class Decoder:
    """What a step computes on one of `shards` devices, the only one included."""

    def __init__(self, model, shards):
        self._model, self._shards = model, shards
        self.by_heads = by_heads(model, shards)
        own = shards if self.by_heads else 1
        self._heads, self._kv_heads = model["heads"] // own, model["kv_heads"] // own
        self._activation = ACTIVATIONS[mlp_of(model)["activation"]]
        self._form = form(model)
        self._rotation = Rotation(model)
        self._manners = [Manner(model, index) for index in range(len(model["layers"]))]

    def manner(self, index):
        """How a layer attends."""
        return self._manners[index]

    def begin(self, capacity):
        """Whether the room for a sequence is a long one to LongRoPE, which then rotates otherwise."""
        return self._rotation.begin(capacity)

    def hidden_states(self, parameters, tokens, positions, attend):
        """States before the first layer and after each, the last one after the final norm, `[batch, n, hidden]`.

        `tokens` are `[batch, n]`, `positions` `[n]`. `attend(layer, q, k, v)` gets `[batch, kv_heads, group, n,
        head_dim]`, `[batch, kv_heads, head_dim, n]` and `[batch, kv_heads, n, head_dim]`, and answers in the form of q.
        """
        with jax.named_scope("embedding"):
            state = self._times("embedding_multiplier", self._embed(parameters["embedding"], tokens))
            if "position_embedding" in parameters:
                state = state + parameters["position_embedding"][positions]
        states = [state]
        for index, layer in enumerate(parameters["layers"]):
            attend_here = lambda x: self._attention(layer, x, positions, index, attend)
            state = self._block(layer, state, (index, "attention"), attend_here)
            state = self._block(layer, state, (index, "mlp"), lambda x: self._mlp(layer, x))
            states.append(state)
        with jax.named_scope("final norm"):
            states[-1] = self._norm(parameters["final_norm"], state)
        return states

    def logits(self, parameters, state):
        """f32 `[batch, n, vocabulary of this device]`."""
        head = parameters.get("lm_head", parameters["embedding"])
        with jax.named_scope("head"):
            logits = self._times("logits_multiplier", product(state, head).astype(jnp.float32))
            return capped(logits, self._form.get("logits_cap"))

    def _block(self, layer, state, of, compute):
        """The state with what a block adds to it, normed before the block, behind it or both."""
        index, name = of
        normed = state
        if before := layer.get(f"{name}_norm"):
            with jax.named_scope(f"layer {index} {name} norm"):
                normed = self._norm(before, state)
        with jax.named_scope(f"layer {index} {name}"):
            added = compute(normed)
        if behind := layer.get(f"{name}_norm_behind"):
            with jax.named_scope(f"layer {index} {name} norm"):
                added = self._norm(behind, added)
        return state + self._times("residual_multiplier", added)

    def _times(self, multiplier, state):
        factor = self._form.get(multiplier)
        return state if factor is None else state * jnp.asarray(factor, state.dtype)

    def _embed(self, embedding, tokens):
        if self._shards == 1:
            return embedding[tokens]
        # Each device has rows of its own; what another has is zero here.
        local = tokens - lax.axis_index(AXIS) * len(embedding)
        here = (local >= 0) & (local < len(embedding))
        rows = embedding[jnp.where(here, local, 0)]
        return lax.psum(jnp.where(here[..., None], rows, 0), AXIS)

    def _norm(self, norm, state):
        wide = state.astype(jnp.float32)
        if not self._model["rms_norm"]:
            wide = wide - wide.mean(-1, keepdims=True)
        wide = wide * lax.rsqrt((wide * wide).mean(-1, keepdims=True) + self._model["norm_epsilon"])
        if offset := self._form.get("norm_offset"):
            # Stored less so much; as published, multiplied in f32.
            return (wide * (norm["weight"].astype(jnp.float32) + offset)).astype(state.dtype)
        scaled = wide.astype(state.dtype) * norm["weight"]
        return scaled + norm["bias"] if "bias" in norm else scaled

    def _attention(self, layer, state, positions, index, attend):
        batch, count, _ = state.shape
        head_dim, kv_heads = self._model["head_dim"], self._kv_heads
        ends = [self._heads * head_dim, (self._heads + kv_heads) * head_dim]
        projected = linear(layer["qkv"], state) if self.by_heads else self._sum(layer["qkv"], self._own(state))
        q, k, v = jnp.split(projected, ends, axis=-1)
        is_whole = self._form.get("whole_qk_norm")
        if is_whole:
            q, k = self._norm(layer["q_norm"], q), self._norm(layer["k_norm"], k)
        q, k, v = (part.reshape(batch, count, -1, head_dim) for part in (q, k, v))
        if "q_norm" in layer and not is_whole:
            q, k = self._norm(layer["q_norm"], q), self._norm(layer["k_norm"], k)
        q, k = (self._rotation.of(index, part, positions) for part in (q, k))
        k, v = k.transpose(0, 2, 3, 1), v.transpose(0, 2, 1, 3)
        q = q.swapaxes(1, 2).reshape(batch, kv_heads, self._heads // kv_heads, count, head_dim)
        mixed = attend(index, q, k, v).reshape(batch, self._heads, count, head_dim)
        mixed = mixed.swapaxes(1, 2).reshape(batch, count, -1)
        return self._sum(layer["output"], mixed if self.by_heads else self._own(mixed))

    def _own(self, state):
        """The columns that this device has weights for, of a state that every device has whole."""
        size = state.shape[-1] // self._shards
        return lax.dynamic_slice_in_dim(state, lax.axis_index(AXIS) * size, size, axis=-1)

    def _mlp(self, layer, state):
        inner = linear(layer["gate_up"], state)
        if mlp_of(self._model)["gated"]:
            gate, up = jnp.split(inner, 2, axis=-1)
            inner = self._activation(gate) * up
        else:
            inner = self._activation(inner)
        return self._sum(layer["down"], inner)

    def _sum(self, layer, state):
        """A linear layer whose columns are divided: added up over the devices, the bias once."""
        result = product(state, layer["weight"])
        if self._shards > 1:
            result = lax.psum(result, AXIS)
        return biased(layer, result)


def linear(layer, state):
    return biased(layer, product(state, layer["weight"]))


def biased(layer, result):
    """`result` with the layer's bias, if it has one.

    The barrier keeps XLA's CPU backend from making one loop of a product of one row and its bias, which computes on one
    thread: 0.90 ms instead of 0.17 ms for 3,072 outputs of 768 on two cores.
    """
    return lax.optimization_barrier(result) + layer["bias"] if "bias" in layer else result


def product(state, weight):
    """`state` `[…, in]` times `weight` `[out, in]`.

    Below f32, how it is written decides whether XLA multiplies by the weights as they are or first converts all of
    them to f32. Of SmolLM2-135M in bfloat16, a token took 10 ms instead of 120 ms with rows in two dimensions, and 16
    rows took 19 ms instead of 144 ms in all layers' products with sums in f32. In f32, rows in two dimensions made XLA
    compile for minutes.
    """
    if state.dtype == jnp.float32:
        return state @ weight.T
    rows = state.reshape(-1, state.shape[-1])
    if state.dtype == jnp.bfloat16 and len(rows) > 1:
        result = lax.dot_general(rows, weight, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
    else:
        result = rows @ weight.T
    return result.astype(state.dtype).reshape(*state.shape[:-1], -1)

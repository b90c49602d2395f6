"""A decoder in plain jax, from a job's description of the model (docs/protocol.md): what one step computes.

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
    sizes = {name: model[name] for name in ("hidden_size", "intermediate_size")}
    sizes["size of all heads"] = model["heads"] * model["head_dim"]
    for name, size in sizes.items():
        if size % shards:
            return f"{name.replace('_', ' ')} {size} of the model cannot be divided over {shards} devices"
    return None


def by_heads(model, shards):
    """Whether each device has heads of its own."""
    return model["heads"] % shards == 0 and model["kv_heads"] % shards == 0


def parameters(model, weights, shards):
    """The weights as numpy arrays, and how each is divided: two trees of one form.

    Whole weights are views of the mapped file. Of those that are fused, each device gets its own rows of every part.
    """
    names, head_dim = model["tensors"], model["head_dim"]
    qkv_rows = [model["heads"] * head_dim, *[model["kv_heads"] * head_dim] * 2]
    gate_up_rows = [model["intermediate_size"]] * (2 if model["gated_mlp"] else 1)

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
        parts |= {name: norm(names[name]) for name in ("attention_norm", "mlp_norm")}
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
        self._activation = ACTIVATIONS[model["activation"]]

    def hidden_states(self, parameters, tokens, positions, attend):
        """States before the first layer and after each, the last one after the final norm, `[batch, n, hidden]`.

        `tokens` are `[batch, n]`, `positions` `[n]`. `attend(layer, q, k, v)` gets `[batch, kv_heads, group, n,
        head_dim]`, `[batch, kv_heads, head_dim, n]` and `[batch, kv_heads, n, head_dim]`, and answers in the form of q.
        """
        with jax.named_scope("embedding"):
            state = self._embed(parameters["embedding"], tokens)
            if "position_embedding" in parameters:
                state = state + parameters["position_embedding"][positions]
        states = [state]
        for index, layer in enumerate(parameters["layers"]):
            with jax.named_scope(f"layer {index} attention norm"):
                normed = self._norm(layer["attention_norm"], state)
            with jax.named_scope(f"layer {index} attention"):
                state = state + self._attention(layer, normed, positions, index, attend)
            with jax.named_scope(f"layer {index} mlp norm"):
                normed = self._norm(layer["mlp_norm"], state)
            with jax.named_scope(f"layer {index} mlp"):
                state = state + self._mlp(layer, normed)
            states.append(state)
        with jax.named_scope("final norm"):
            states[-1] = self._norm(parameters["final_norm"], state)
        return states

    def logits(self, parameters, state):
        """f32 `[batch, n, vocabulary of this device]`."""
        head = parameters.get("lm_head", parameters["embedding"])
        with jax.named_scope("head"):
            return product(state, head).astype(jnp.float32)

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
        scaled = wide.astype(state.dtype) * norm["weight"]
        return scaled + norm["bias"] if "bias" in norm else scaled

    def _attention(self, layer, state, positions, index, attend):
        batch, count, _ = state.shape
        head_dim, kv_heads = self._model["head_dim"], self._kv_heads
        ends = [self._heads * head_dim, (self._heads + kv_heads) * head_dim]
        projected = linear(layer["qkv"], state) if self.by_heads else self._sum(layer["qkv"], self._own(state))
        q, k, v = jnp.split(projected, ends, axis=-1)
        q, k, v = (part.reshape(batch, count, -1, head_dim) for part in (q, k, v))
        if "q_norm" in layer:
            q, k = self._norm(layer["q_norm"], q), self._norm(layer["k_norm"], k)
        if self._model["inverse_frequencies"]:
            q, k = self._rotated(q, positions), self._rotated(k, positions)
        k, v = k.transpose(0, 2, 3, 1), v.transpose(0, 2, 1, 3)
        q = q.swapaxes(1, 2).reshape(batch, kv_heads, self._heads // kv_heads, count, head_dim)
        mixed = attend(index, q, k, v).reshape(batch, self._heads, count, head_dim)
        mixed = mixed.swapaxes(1, 2).reshape(batch, count, -1)
        return self._sum(layer["output"], mixed if self.by_heads else self._own(mixed))

    def _own(self, state):
        """The columns that this device has weights for, of a state that every device has whole."""
        size = state.shape[-1] // self._shards
        return lax.dynamic_slice_in_dim(state, lax.axis_index(AXIS) * size, size, axis=-1)

    def _rotated(self, heads, positions):
        """Rotary embedding by halves (Su and others 2021); `heads` are `[batch, n, heads, head_dim]`."""
        frequencies = jnp.asarray(self._model["inverse_frequencies"], jnp.float32)
        angles = (positions.astype(jnp.float32)[:, None] * frequencies)[:, None, :]
        cos, sin = jnp.cos(angles), jnp.sin(angles)
        left, right = jnp.split(heads.astype(jnp.float32), 2, axis=-1)
        return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], -1).astype(heads.dtype)

    def _mlp(self, layer, state):
        inner = linear(layer["gate_up"], state)
        if self._model["gated_mlp"]:
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


def attention(q, old, new, positions):
    """Causal attention of queries at `positions` over keys and values of the tokens before and of their own.

    Shapes are those of `Decoder.hidden_states`. `old` may have room behind the tokens before; it is None where there
    are none.
    """
    count, parts = q.shape[3], [new]
    seen = [jnp.arange(count) <= jnp.arange(count)[:, None]]
    if old is not None:
        room = old[1].shape[2]
        parts.insert(0, old)
        seen.insert(0, jnp.broadcast_to(jnp.arange(room) < positions[0], (count, room)))
    scores = jnp.concatenate([jnp.einsum("bkgnd,bkdc->bkgnc", q, keys) for keys, _ in parts], -1)
    scores = scores.astype(jnp.float32) * q.shape[-1] ** -0.5
    shares = jax.nn.softmax(jnp.where(jnp.concatenate(seen, -1), scores, -jnp.inf), axis=-1).astype(q.dtype)
    shares = [shares] if old is None else jnp.split(shares, [room], axis=-1)
    return sum(jnp.einsum("bkgnc,bkcd->bkgnd", share, values) for share, (_, values) in zip(shares, parts))


def attention_both_ways(q, keys, values):
    """The same of positions that all see one another."""
    scores = jnp.einsum("bkgnd,bkdc->bkgnc", q, keys).astype(jnp.float32) * q.shape[-1] ** -0.5
    return jnp.einsum("bkgnc,bkcd->bkgnd", jax.nn.softmax(scores, axis=-1).astype(q.dtype), values)


def attention_of_one(q, old, new, filled):
    """The same for one new token each, which is put among those before it: `old` has room for it.

    XLA makes two loops of these sums, which read part of a cache where it is. Its products, which a library computes,
    take longer, 13.4 ms instead of 10.0 ms a token of SmolLM2-135M in a cache of 80 on two cores, and copy the part.
    """
    places = jnp.arange(old[1].shape[2])
    here, seen = places == filled, places <= filled
    keys, values = jnp.where(here, new[0], old[0]), jnp.where(here[:, None], new[1], old[1])
    scores = (q[..., 0, :, None] * keys[:, :, None]).sum(-2).astype(jnp.float32) * q.shape[-1] ** -0.5
    shares = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1).astype(q.dtype)
    return (shares[..., None] * values[:, :, None]).sum(-2)[..., None, :]

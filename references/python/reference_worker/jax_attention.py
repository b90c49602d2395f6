"""Attention and rotations of a decoder in plain jax, by layer, as a job's description of the model says."""

import numpy
from jax import nn
from jax import numpy as jnp


class Manner:
    """How a layer attends: what its scores are multiplied by, their soft cap, and how many keys a query sees."""

    def __init__(self, model, index):
        form, layer = model.get("form") or {}, model["layers"][index]
        self.scale = form.get("attention_scale") or model["head_dim"] ** -0.5
        self.cap = form.get("attention_cap")
        self.window = layer.get("window")

    def scores(self, products):
        return capped(products.astype(jnp.float32) * self.scale, self.cap)

    def seen(self, queries, keys):
        """Whether a query sees a key, by their positions. Its own is in the window, too."""
        seen = keys <= queries
        return seen if self.window is None else seen & (queries - keys < self.window)


class Rotation:
    """Rotary embedding by halves (Su and others 2021), by layer."""

    def __init__(self, model):
        rotations = model["rotations"]
        self._long, self._is_long = (rotations[0] if rotations else {}).get("longrope"), False
        if self._long:
            plain = rotations[0]["inverse_frequencies"]
            sizes = numpy.arange(len(plain)) / len(plain)
            base = (1.0 / rotations[0]["theta"] ** sizes).astype(numpy.float32)
            self._divided = base / numpy.array(self._long["long"], numpy.float32)
        places = [layer["rotation"] for layer in model["layers"]]
        self._frequencies = [None if at is None else rotations[at]["inverse_frequencies"] for at in places]

    def begin(self, capacity):
        """Whether a sequence of so many positions is a long one to LongRoPE: its keys are never rotated again."""
        self._is_long = bool(self._long) and capacity > self._long["original_max_positions"]
        return self._is_long

    def of(self, index, heads, positions):
        """`heads` are `[batch, n, heads, head_dim]`; of each head the first dimensions are rotated, or all."""
        frequencies = self._frequencies[index]
        if frequencies is None:
            return heads
        frequencies = jnp.asarray(self._divided if self._is_long else frequencies, jnp.float32)
        angles = (positions.astype(jnp.float32)[:, None] * frequencies)[:, None, :]
        scale = self._long["scale"] if self._long else 1
        cos, sin = jnp.cos(angles) * scale, jnp.sin(angles) * scale
        turned, rest = jnp.split(heads, [2 * len(frequencies)], axis=-1)
        left, right = jnp.split(turned.astype(jnp.float32), 2, axis=-1)
        turned = jnp.concatenate([left * cos - right * sin, right * cos + left * sin], -1).astype(heads.dtype)
        return jnp.concatenate([turned, rest], -1) if rest.shape[-1] else turned


def capped(values, cap):
    return values if cap is None else jnp.tanh(values / cap) * cap


def attention(q, old, new, positions, manner):
    """Causal attention of queries at `positions` over keys and values of the tokens before and of their own.

    Shapes are those of `Decoder.hidden_states`. `old` may have room behind the tokens before; it is None where there
    are none.
    """
    count, parts = q.shape[3], [new]
    seen = [manner.seen(jnp.arange(count)[:, None], jnp.arange(count))]
    if old is not None:
        room = old[1].shape[2]
        parts.insert(0, old)
        places = jnp.arange(room)
        before = manner.seen(positions[:, None], places) & (places < positions[0])
        seen.insert(0, jnp.broadcast_to(before, (count, room)))
    scores = jnp.concatenate([jnp.einsum("bkgnd,bkdc->bkgnc", q, keys) for keys, _ in parts], -1)
    scores = jnp.where(jnp.concatenate(seen, -1), manner.scores(scores), -jnp.inf)
    shares = nn.softmax(scores, axis=-1).astype(q.dtype)
    shares = [shares] if old is None else jnp.split(shares, [room], axis=-1)
    return sum(jnp.einsum("bkgnc,bkcd->bkgnd", share, values) for share, (_, values) in zip(shares, parts))


def attention_both_ways(q, keys, values, manner):
    """The same of positions that all see one another."""
    scores = manner.scores(jnp.einsum("bkgnd,bkdc->bkgnc", q, keys))
    return jnp.einsum("bkgnc,bkcd->bkgnd", nn.softmax(scores, axis=-1).astype(q.dtype), values)


def attention_of_one(q, old, new, filled, manner):
    """The same for one new token each, which is put among those before it: `old` has room for it.

    XLA makes two loops of these sums, which read part of a cache where it is. Its products, which a library computes,
    take longer, 13.4 ms instead of 10.0 ms a token of SmolLM2-135M in a cache of 80 on two cores, and copy the part.
    """
    places = jnp.arange(old[1].shape[2])
    here, seen = places == filled, manner.seen(filled, places)
    keys, values = jnp.where(here, new[0], old[0]), jnp.where(here[:, None], new[1], old[1])
    scores = manner.scores((q[..., 0, :, None] * keys[:, :, None]).sum(-2))
    shares = nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1).astype(q.dtype)
    return (shares[..., None] * values[:, :, None]).sum(-2)[..., None, :]

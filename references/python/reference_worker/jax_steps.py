"""Steps of a decoder, by how the sequence is kept from one step to the next.

Each class answers the same: `empty` (the form of what is kept, all zero before the first token), `shape` (what a step
is compiled for: a key, and a short phrase) and two functions to compile for such a key. `step`, of the parameters, what
is kept, tokens `[batch, n]` and the number of tokens before them, answers with logits, hidden states if they are asked
for, and what is new. `keep`, of what is kept, what is new and that number, answers with what is kept from then on: in
the same buffers if `IN_PLACE`. `division` says how both are divided over devices.

The two are apart because XLA's CPU backend copies a whole cache that is read and updated by one function.
"""

from functools import partial

import jax
from jax import lax
from jax import numpy as jnp

from .jax_attention import attention, attention_both_ways, attention_of_one
from .jax_decoder import COLUMNS, WHOLE

# A decode step reads the first places of a static cache: so many, or twice or four times … as many.
SHORTEST_READ = 256
# A whole cache that is longer is read faster by XLA's products than by attention_of_one: 20 ms instead of 24 ms a token
# of SmolLM2-135M in a cache of 2,048 on two cores.
LONGEST_LOOP = 1024


class Steps:
    def __init__(self, decoder, model, element, keeps_hidden):
        self._decoder, self._keeps_hidden, self._element = decoder, keeps_hidden, element
        self._heads, self._layers, self._head_dim = model["kv_heads"], len(model["layers"]), model["head_dim"]

    def step(self, key):
        return partial(self._step, *key[2:])


class Cached(Steps):
    """Keys and values of every layer are kept, `[batch, kv_heads, head_dim, positions]` and `[…, positions, head_dim]`:
    what XLA's products and loops read without turning it round."""

    @property
    def division(self):
        return COLUMNS if self._decoder.by_heads else WHOLE

    def _form(self, batch, positions):
        forms = (self._head_dim, positions), (positions, self._head_dim)
        layer = tuple(jax.ShapeDtypeStruct((batch, self._heads, *form), self._element) for form in forms)
        return [layer] * self._layers

    def _step(self, count, before, every, parameters, kept, tokens, filled):
        """`before` is the number of places in what is kept to attend to: 0 before the first token."""
        positions, cache = filled + jnp.arange(count), []

        def attend(index, q, *new):
            cache.append(new)
            manner = self._decoder.manner(index)
            if not before:
                return attention(q, None, new, positions, manner)
            keys, values = kept[index]
            old = keys[..., :before], values[:, :, :before]
            is_short = before <= LONGEST_LOOP or before < values.shape[2]
            if count == 1 and self.IN_PLACE and is_short:
                return attention_of_one(q, old, new, filled, manner)
            return attention(q, old, new, positions, manner)

        states = self._decoder.hidden_states(parameters, tokens, positions, attend)
        chosen = states[-1] if every else states[-1][:, -1:]
        return self._decoder.logits(parameters, chosen), states if self._keeps_hidden else [], cache


class Static(Cached):
    """A cache of fixed size."""

    POLICY, IN_PLACE = "preallocated", True

    def empty(self, batch, capacity):
        return self._form(batch, capacity)

    def shape(self, batch, capacity, filled, count, every):
        room = f"batch {batch}, cache of {capacity}"
        if count == 1:
            read = SHORTEST_READ
            while read <= filled:
                read *= 2
            part = f", {read} of them read" if read < capacity else ""
            return (batch, capacity, 1, min(read, capacity), True), f"decode, {room}{part}"
        kind = "append" if filled else "prefill"
        words = f"{kind} of {count} tokens, {room}{of_all(every)}"
        return (batch, capacity, count, capacity if filled else 0, every), words

    def keep(self, kept, new, filled):
        places = (0, 0, 0, filled), (0, 0, filled, 0)
        return [tuple(map(lax.dynamic_update_slice, old, added, places)) for old, added in zip(kept, new)]


class Growing(Cached):
    """A cache as long as the sequence: every step has shapes of its own."""

    POLICY, IN_PLACE = "growing", False

    def empty(self, batch, capacity):
        return self._form(batch, 0)

    def shape(self, batch, capacity, filled, count, every):
        words = f"{count} tokens after {filled}, batch {batch}{of_all(every and count > 1)}"
        return (batch, None, count, filled, every or count == 1), words

    def keep(self, kept, new, filled):
        together = lambda old, added: tuple(jnp.concatenate(pair, axis) for *pair, axis in zip(old, added, (3, 2)))
        return [together(*layer) for layer in zip(kept, new)]


class Recomputed(Steps):
    """No cache: the tokens alone are kept, in room for all of them, and every step computes all of that room."""

    POLICY, IN_PLACE, division = "recomputed", True, WHOLE

    def empty(self, batch, capacity):
        return jax.ShapeDtypeStruct((batch, capacity), jnp.int32)

    def shape(self, batch, capacity, filled, count, every):
        words = f"all {capacity} positions for {count} new, batch {batch}{of_all(every and count > 1)}"
        return (batch, capacity, count, count if every else 1), words

    def _step(self, count, wanted, parameters, kept, tokens, filled):
        whole = self.keep(kept, tokens, filled)
        positions = jnp.arange(whole.shape[1])
        attend = lambda index, q, *new: attention(q, None, new, positions, self._decoder.manner(index))
        states = self._decoder.hidden_states(parameters, whole, positions, attend)
        last = lambda state, size: lax.dynamic_slice_in_dim(state, filled + count - size, size, axis=1)
        logits = self._decoder.logits(parameters, last(states[-1], wanted))
        return logits, [last(state, count) for state in states] if self._keeps_hidden else [], tokens

    def keep(self, kept, new, filled):
        return lax.dynamic_update_slice(kept, new, (0, filled))


class BothWays(Steps):
    """Nothing is kept: every step is a pass over a whole sequence, whose positions all see one another."""

    POLICY, IN_PLACE, division = "none", False, WHOLE

    def empty(self, batch, capacity):
        return ()

    def shape(self, batch, capacity, filled, count, every):
        return (batch, None, count, every), f"a pass over {count} positions, batch {batch}{of_all(every)}"

    def _step(self, count, every, parameters, kept, tokens, filled):
        attend = lambda index, q, *new: attention_both_ways(q, *new, self._decoder.manner(index))
        states = self._decoder.hidden_states(parameters, tokens, jnp.arange(count), attend)
        chosen = states[-1] if every else states[-1][:, -1:]
        return self._decoder.logits(parameters, chosen), states if self._keeps_hidden else [], ()

    def keep(self, kept, new, filled):
        return ()


def of_all(every):
    return ", logits of every position" if every else ""


POLICIES = {"static": Static, "growing": Growing, "none": Recomputed}

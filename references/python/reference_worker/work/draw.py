"""Drawing tokens as the crate `worker` draws them (docs/reference/protocol.md), so that equal logits give equal
tokens whatever the worker: with numpy in double precision, whose exponential and sums may have another last digit."""

import numpy

from .chacha import Stream

# How far below the largest, in units of the temperature, tokens are looked for, as long as those found have too little mass.
DEPTHS = (8.0, 12.0, 16.0, 24.0, float("inf"))
LEAST = -700.0


class Sampler:
    """`sampling` has `temperature`, `top_k` or None, `top_p` or None and `seed`. Case *n* draws from stream *n*."""

    def __init__(self, sampling, vocabulary, cases, draws):
        single = lambda name: float(numpy.float32(sampling[name]))
        top_k, self._top_p = sampling.get("top_k"), None
        self._top_k = top_k if top_k is not None and top_k < vocabulary else None
        if sampling.get("top_p") is not None and single("top_p") < 1:
            self._top_p = single("top_p")
        self._inverse = 1.0 / single("temperature")
        # Drawn before any request: a generator written in Python takes microseconds for each.
        streams = [Stream(sampling["seed"], case) for case in range(cases)]
        self._uniforms = [[stream.uniform() for _ in range(draws)] for stream in streams]

    def begin(self, case):
        """The same random numbers in every request of a case."""
        self._next = iter(self._uniforms[case])

    def draw(self, logits, batch):
        """A token for each of `batch` rows of f32 logits, given as bytes: one random number each, whatever they are."""
        rows = numpy.frombuffer(logits, numpy.float32).reshape(batch, -1)
        return [self._drawn(row, next(self._next)) for row in rows]

    def _drawn(self, row, uniform):
        largest = numpy.fmax.reduce(row)
        if not numpy.isfinite(largest):
            # There is no distribution: the first of the largest.
            return int(numpy.where(numpy.isnan(row), -numpy.inf, row).argmax())
        if self._top_k is not None:
            tokens = most_likely(row, self._top_k)
            weights = self._weights(row[tokens], largest)
            mass = weights.sum()
        else:
            mass = self._weights(row, largest).sum()
            share = uniform if self._top_p is None else self._top_p
            tokens, weights = self._gathered(row, largest, share * mass)
        reached = numpy.cumsum(weights)
        if self._top_p is not None:
            # The fewest whose masses add up to the share.
            last = min(int(numpy.searchsorted(reached, self._top_p * mass)), len(tokens) - 1)
            tokens, reached, mass = tokens[: last + 1], reached[: last + 1], reached[last]
        return int(tokens[min(int(numpy.searchsorted(reached, uniform * mass)), len(tokens) - 1)])

    def _gathered(self, row, largest, target):
        """The most likely tokens in falling order, so many that their mass reaches `target`, or all, and their weights."""
        for depth in DEPTHS:
            (tokens,) = (row > numpy.float32(float(largest) - depth / self._inverse)).nonzero()
            tokens = falling(row, tokens)
            weights = self._weights(row[tokens], largest)
            if weights.sum() >= target:
                break
        return tokens, weights

    def _weights(self, logits, largest):
        """Probabilities relative to the most likely token's."""
        exponents = (logits.astype(numpy.float64) - float(largest)) * self._inverse
        return numpy.exp(numpy.fmax(exponents, LEAST))


def most_likely(row, count):
    """The `count` most likely tokens in falling order, equals by id. What is not a number or −∞ is none of them."""
    (tokens,) = (row > -numpy.inf).nonzero()
    if len(tokens) > count:
        least = numpy.partition(row[tokens], len(tokens) - count)[len(tokens) - count]
        tokens = tokens[row[tokens] >= least]
    return falling(row, tokens)[:count]


def falling(row, tokens):
    return tokens[numpy.argsort(-row[tokens], kind="stable")]

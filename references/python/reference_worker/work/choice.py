"""What masked positions would become at temperature 0, and how sure that is, in double precision.

1. The fewest most likely tokens remain whose probabilities reach `top_p`, and of these the `top_k` most likely.
2. The most likely one is chosen, the lowest id of equals.
3. Its confidence is, by the algorithm, its probability, its lead over the next one, or minus the entropy,
   Σ p · ln(p + 10⁻¹⁰), of what remains.
"""

import numpy

# Keeps the logarithm of a probability of 0 finite, as Dream's sampler does.
EPSILON = 1e-10
# Logits that are worked on at a time: their copies in double precision stay in a cache of the CPU.
PIECE = 1 << 16


def choices(logits, positions, algorithm, top_p=None, top_k=None):
    """`(token, confidence)` of each of the positions, whose logits are `logits[position]`, f32 `[positions,
    vocabulary]`. Where they have no distribution it is the first of the largest, with a confidence below all others."""
    rows, found = max(1, PIECE // logits.shape[1]), []
    for start in range(0, len(positions), rows):
        piece = logits[positions[start : start + rows]]
        tokens, largest = piece.argmax(axis=1), piece.max(axis=1)
        if not numpy.isfinite(largest).all():
            # What is not a number is passed over.
            piece[numpy.isnan(piece)] = -numpy.inf
            tokens, largest = piece.argmax(axis=1), piece.max(axis=1)
        is_distribution = numpy.isfinite(largest)
        piece[~is_distribution], largest[~is_distribution] = 0, 0
        weights = numpy.subtract(piece, largest[:, None], dtype=numpy.float64)
        sure = confidence(numpy.exp(weights, out=weights), algorithm, top_p, top_k)
        sure[~is_distribution] = -numpy.inf
        found += zip(tokens.tolist(), sure.tolist())
    return found


def confidence(weights, algorithm, top_p, top_k):
    """Of each row; `weights` are probabilities relative to the most likely token's, `[rows, vocabulary]`, and are written
    over: what large rows cost is mostly memory."""
    if (top_p or 1) < 1 or (top_k or weights.shape[1]) < weights.shape[1]:
        weights = remaining(weights, top_p, top_k)
    mass = weights.sum(axis=1)
    if algorithm == "maskgit_plus":
        return 1 / mass
    if algorithm == "topk_margin":
        return 1 / mass - second(weights) / mass
    weights /= mass[:, None]
    terms = weights + EPSILON
    numpy.log(terms, out=terms)
    return numpy.multiply(terms, weights, out=terms).sum(axis=1)


def second(weights):
    """The second largest of each row; 0 if it has only one."""
    if weights.shape[1] == 1:
        return numpy.zeros(len(weights))
    weights.partition(-2, axis=1)
    return weights[:, -2]


def remaining(weights, top_p, top_k):
    """The weights in falling order, those that are left out 0. Which of several equal ones remain makes no difference
    to a confidence."""
    weights.sort(axis=1)
    falling = weights[:, ::-1]
    if top_p is not None and top_p < 1:
        reached = numpy.cumsum(falling, axis=1)
        # A token remains as long as those before it fall short.
        falling[:, 1:][reached[:, :-1] >= top_p * reached[:, -1:]] = 0
    if top_k is not None:
        falling[:, top_k:] = 0
    return falling

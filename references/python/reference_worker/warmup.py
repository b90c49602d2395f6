"""Warm-up: whole iterations, thrown away as samples but reported, until the latest has settled."""

from . import clock

# Below this, medians of the halves of an iteration say more of chance than of a trend.
GAPS_FOR_HALVES = 8


def warm_up(runner, limits):
    start, iterations, settled = clock.now_ns(), [], False
    while goes_on(limits, len(iterations), settled, clock.now_ns() - start):
        iterations.append(runner.iteration(len(iterations)))
        settled = has_settled(iterations, limits["settled_within"])
    return iterations, settled


def goes_on(limits, done, settled, elapsed_ns):
    """Whether another iteration is begun after `done` ones."""
    enough = settled and done >= limits["min_iterations"]
    # The first is run whatever the limit: what is measured must have run once.
    return done == 0 or (not enough and done < limits["max_iterations"] and elapsed_ns < limits["max_ns"])


def has_settled(iterations, within):
    """Whether the latest iteration is steady in itself, or as fast, token by token, as the one before."""
    latest = _gaps(iterations[-1])
    if len(latest) >= GAPS_FOR_HALVES:
        middle = len(latest) // 2
        if _near(_median(latest[:middle]) / _median(latest[middle:]), within):
            return True
    if len(iterations) < 2:
        return False
    return _near(_median([a / b for a, b in zip(_gaps(iterations[-2]), latest)]), within)


def _gaps(iteration):
    """The token gaps of all cases; of requests for one token, which have none, their first tokens' times."""
    gaps = [ns for case in iteration["cases"] for ns in case["gaps_ns"]]
    return gaps or [case["first_token_ns"] for case in iteration["cases"]]


def _near(ratio, within):
    """Whether a ratio differs from 1 by less than a share, whichever of the two is the larger."""
    return max(ratio, 1 / ratio) < 1 + within


def _median(values):
    """The upper of the two in the middle of an even number."""
    return sorted(values)[len(values) // 2]

"""Warm-up: whole iterations, thrown away as samples but reported, until the latest has settled."""

from . import clock

# Below this, medians of the halves of an iteration say more of chance than of a trend.
GAPS_FOR_HALVES = 8


def warm_up(workload, limits, cold):
    """`cold`: the sample of the cold start's request."""
    start, iterations, settled = clock.now_ns(), [], False
    from_cold = limits.get("from_cold", False) and len(workload.cases) > 1
    before = [cold] if from_cold else []
    while goes_on(limits, len(iterations), settled, clock.now_ns() - start):
        iterations.append(workload.iteration(len(iterations), before))
        settled, before = has_settled(iterations, limits["settled_within"]), []
    return {"iterations": iterations, "settled": settled, "from_cold": from_cold}


def goes_on(limits, done, settled, elapsed_ns):
    """Whether another iteration is begun after `done` ones."""
    enough = settled and done >= limits["min_iterations"]
    # The first is run whatever the limit: what is measured must have run once.
    return done == 0 or (not enough and done < limits["max_iterations"] and elapsed_ns < limits["max_ns"])


def has_settled(iterations, within):
    """Whether the latest iteration is steady in itself, or as fast, gap by gap, as the one before."""
    latest = _gaps(iterations[-1])
    if len(latest) >= GAPS_FOR_HALVES:
        middle = len(latest) // 2
        if _near(_median(latest[:middle]) / _median(latest[middle:]), within):
            return True
    if len(iterations) < 2:
        return False
    return _near(_median([a / b for a, b in zip(_gaps(iterations[-2]), latest)]), within)


def _gaps(iteration):
    """The gaps between marks of all cases; of requests of one mark, which have none, the times of that."""
    marks = [case["marks_ns"] for case in iteration["cases"]]
    gaps = [after - before for each in marks for before, after in zip(each, each[1:])]
    return gaps or [each[0] for each in marks]


def _near(ratio, within):
    """Whether a ratio differs from 1 by less than a share, whichever of the two is the larger."""
    return max(ratio, 1 / ratio) < 1 + within


def _median(values):
    """The upper of the two in the middle of an even number."""
    return sorted(values)[len(values) // 2]

"""The turns of a measurement: a worker that is warm waits for lines on stdin.

A turn is a request, answered with its sample, or a slice of one: the request keeps its state while others have turns.

Within a request there is no I/O and no logging. Neither the wait nor the untimed lead-in nor the context counts as used.
"""

import json

from . import clock, threads
from .bundle import bad_input
from .memory import Phase


def take(runner, task, stream, send):
    """Takes turns until the last. What the requests used, and what is asked for after them."""
    phase, spent, under_way, number = Phase(), Spent(), None, None
    while (turn := _next(stream, task, number if under_way else None))["turn"] != "finish":
        case = turn["case"]
        if under_way is None:
            runner.lead_in(case, task.get("lead_in", 0))
            runner.fill_context(case)
        if turn["turn"] == "request":
            send("sample", case=case, **spent.during(lambda: runner.request(case, turn.get("trace"))))
            continue
        if under_way is None:
            under_way = spent.during(lambda: runner.begin(runner.case(case, turn.get("trace"))))
            number = case
        else:
            spent.during(lambda: runner.advance(under_way, turn["steps"]))
        if runner.is_complete(under_way):
            send("sample", case=case, **under_way.sample())
            under_way = None
        else:
            send("slice", case=case, tokens=len(under_way.tokens))
    usage = {
        "compiled": runner.compiled(),
        "memory": phase.end(), "cpu_ns": spent.cpu_ns, "wall_ns": spent.wall_ns,
        "thread_cpu_ns": spent.threads.busiest_first(), "run_queue_ns": spent.threads.run_queue_ns,
        "threads": threads.count(), "cpus": threads.cpus(),
        # Not read here: see docs/references.md.
        "energy": None, "kv_cache_bytes": None, "gpu_allocated_bytes": runner.gpu_allocated(),
    }
    return usage, turn


def _next(stream, task, under_way):
    """Waits for the next turn. `under_way`: the case of the request that is, or None."""
    cases = len(task["cases"])
    line = stream.readline()
    if not line:
        raise bad_input("the turns ended without a finish")
    try:
        turn = json.loads(line)
    except ValueError as error:
        raise bad_input(f"a turn does not parse: {error}") from None
    kind, case = turn.get("turn"), turn.get("case")
    if kind not in ("request", "slice", "finish"):
        raise bad_input(f"unknown turn {kind!r}")
    if kind != "finish" and case not in range(cases):
        raise bad_input(f"a turn asks for case {case}, and there are {cases}")
    if kind == "slice":
        if task.get("denoise"):
            raise bad_input("a request of masked diffusion has no slices: ask for whole requests")
        if not isinstance(turn.get("steps"), int) or turn["steps"] < 1:
            raise bad_input("a slice has at least one step")
    if kind != "finish" and under_way is not None:
        if kind == "request" or case != under_way:
            raise bad_input(f"a turn asks for case {case} while another request is under way")
    trace = turn.get("trace")
    if trace and [len(row) for row in trace] != [task["new_tokens"]] * len(task["cases"][case]["prompts"]):
        raise bad_input("a turn's trace needs a row for each prompt, as long as the new tokens")
    return turn


class Spent:
    """What all measured requests used so far."""

    def __init__(self):
        self.cpu_ns = self.wall_ns = 0
        self.threads = threads.Used()

    def during(self, request):
        """Adds what a request uses, and returns its answer."""
        before = threads.cpu_times()
        cpu, wall = clock.cpu_ns(), clock.now_ns()
        answer = request()
        self.wall_ns += clock.now_ns() - wall
        self.cpu_ns += clock.cpu_ns() - cpu
        self.threads.add(before, threads.cpu_times())
        return answer

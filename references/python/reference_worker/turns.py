"""The turns of a measurement: a worker that is warm waits for lines on stdin, and answers each with a request's sample.

Within a request there is no I/O and no logging. Neither the wait nor the untimed lead-in nor the context counts as used.
"""

import json

from . import clock, threads
from .bundle import bad_input
from .memory import Phase


def take(runner, task, stream, send):
    """Takes turns until the last. What the requests used, and what is asked for after them."""
    phase, spent = Phase(), Spent()
    while (turn := _next(stream, len(task["cases"])))["turn"] != "finish":
        case = turn["case"]
        runner.lead_in(case, task.get("lead_in", 0))
        runner.fill_context(case)
        sample = spent.during(lambda: runner.request(case))
        send("sample", case=case, **sample)
    usage = {
        "compiled": runner.compiled(),
        "memory": phase.end(), "cpu_ns": spent.cpu_ns, "wall_ns": spent.wall_ns,
        "thread_cpu_ns": spent.threads.busiest_first(), "run_queue_ns": spent.threads.run_queue_ns,
        "threads": threads.count(), "cpus": threads.cpus(),
        # Not read here: see docs/references.md.
        "energy": None, "kv_cache_bytes": None, "gpu_allocated_bytes": runner.gpu_allocated(),
    }
    return usage, turn


def _next(stream, cases):
    """Waits for the next turn."""
    line = stream.readline()
    if not line:
        raise bad_input("the turns ended without a finish")
    try:
        turn = json.loads(line)
    except ValueError as error:
        raise bad_input(f"a turn does not parse: {error}") from None
    kind, case = turn.get("turn"), turn.get("case")
    if kind not in ("request", "finish"):
        raise bad_input(f"unknown turn {kind!r}")
    if kind == "request" and case not in range(cases):
        raise bad_input(f"a turn asks for case {case}, and there are {cases}")
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

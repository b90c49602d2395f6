"""The turns of a measurement: a worker that is warm waits for lines on stdin.

A turn is a request, answered with its sample, or a slice of one: the request keeps its state while others have turns.

Within a request there is no I/O and no logging. Neither the wait nor the untimed lead-in nor the context counts as used.
"""

import json

from . import clock, threads
from .bundle import bad_input
from .memory import Phase


def take(workload, lead_in, stream, send):
    """Takes turns until the last. What the requests used, and what is asked for after them."""
    phase, spent, under_way, prepared, answered = Phase(), Spent(), None, None, None
    while (turn := _next(stream, workload, under_way, answered))["turn"] != "finish":
        case, given = turn["case"], turn.get("input")
        if turn["turn"] == "logits":
            # The step has them: nothing is computed now, and nothing is measured.
            send("logits", case=case, values=workload.logits(turn["tokens"]))
            continue
        answered = None
        if under_way is None:
            if prepared != case:
                workload.lead_in(case, lead_in)
                workload.prepare(case)
            prepared = None
        if turn["turn"] == "prepare":
            prepared = case
            send("ready", case=case)
            continue
        answered = case
        if turn["turn"] == "request":
            request = spent.during(lambda: workload.request(case, given))
            send("sample", **workload.sample(request))
            continue
        if under_way is None:
            under_way = spent.during(lambda: workload.begin(case, given))
        else:
            spent.during(lambda: workload.advance(under_way, turn["marks"], given))
        if len(under_way.marks) >= workload.marks:
            send("sample", **workload.sample(under_way))
            under_way = None
        else:
            send("slice", case=case, marks=len(under_way.marks))
    usage = {
        "compiled": workload.compiled(),
        "memory": phase.end(workload.adapter), "cpu_ns": spent.cpu_ns, "wall_ns": spent.wall_ns,
        "thread_cpu_ns": spent.threads.busiest_first(), "run_queue_ns": spent.threads.run_queue_ns,
        "threads": threads.count(), "cpus": threads.cpus(),
        # Not read here: see docs/reference/frameworks.md.
        "energy": None, "kv_cache_bytes": None,
    }
    return usage, turn


def _next(stream, workload, under_way, answered):
    """Waits for the next turn. `under_way`: the request that is, or None. `answered`: the case of the slice or sample that
    was the last answer, or None."""
    cases = len(workload.cases)
    line = stream.readline()
    if not line:
        raise bad_input("the turns ended without a finish")
    try:
        turn = json.loads(line)
    except ValueError as error:
        raise bad_input(f"a turn does not parse: {error}") from None
    kind, case = turn.get("turn"), turn.get("case")
    if kind not in ("prepare", "request", "slice", "logits", "finish"):
        raise bad_input(f"unknown turn {kind!r}")
    if kind != "finish" and case not in range(cases):
        raise bad_input(f"a turn asks for case {case}, and there are {cases}")
    if kind == "slice" and (not isinstance(turn.get("marks"), int) or turn["marks"] < 1):
        raise bad_input("a slice has at least one mark")
    if kind != "finish" and under_way is not None:
        if kind not in ("slice", "logits") or case != under_way.case:
            raise bad_input(f"a turn asks for case {case} while another request is under way")
    if kind == "logits" and case != answered:
        raise bad_input(f"a turn asks for logits of case {case}, whose slice or sample is not the last answer")
    given = turn.get("input")
    if given is not None and kind == "slice":
        workload.check_slice(case, given, under_way, turn["marks"])
    elif given is not None:
        workload.check(case, given)
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

"""A run to look at: every phase and token with the clock's readings, and the framework's own events on the same clock."""

import json
import time
from bisect import bisect_right
from pathlib import Path

from . import clock, work
from .bundle import WorkerError, bad_input

# Readings of two clocks beside each other, of which the quickest counts.
TRIES = 32


def trace(adapter, task, context, phases):
    """`phases` are those up to the load. The fields of the event `traced`."""
    workload = work.of(adapter, task["work"], context, is_fed=False)
    if not workload.cases:
        raise bad_input("there is no request to look at")
    before, start, reason = beside(), clock.now_ns(), None
    try:
        adapter.begin_profile(Path(task["file"]).parent)
        phases.append({"name": "profiler start", "start_ns": start, "end_ns": clock.now_ns()})
    except WorkerError as error:
        if error.kind != "unsupported":
            raise
        reason = str(error).removeprefix("unsupported: ")
    requests = []
    for phase, marks in (("cold start", 1), ("warm-up", workload.marks), ("request", workload.marks)):
        workload.prepare(0)
        request = workload.request(0, marks=marks)
        start, ends = request.start, [request.start + mark for mark in request.marks]
        phases.append({"name": phase, "start_ns": start, "end_ns": ends[-1]})
        # Of texts that are encoded there are none.
        tokens = workload.output(request).get("tokens", [])
        requests.append({"phase": phase, "start_ns": start, "tokens_ns": ends, "tokens": tokens})
    if reason is not None:
        return {"phases": phases, "requests": requests, "profiler": None, "notes": [reason]}
    profile = adapter.end_profile()
    steps = [step for request in requests for step in zip([request["start_ns"], *request["tokens_ns"]], request["tokens_ns"])]
    events, error = placed(profile, steps, (before, beside()))
    Path(task["file"]).write_text(json.dumps(events))
    alignment = {"clock": profile["clock"], "error_ns": error, "overhang_ns": overhang(events, steps)}
    profiler = {"name": profile["profiler"], "file": task["file"], "events": len(events), "alignment": alignment}
    return {"phases": phases, "requests": requests, "profiler": profiler, "notes": profile["notes"]}


def beside():
    """What the time since 1970 is later than this clock, and how far that may be off."""
    found = []
    for _ in range(TRIES):
        before = clock.now_ns()
        since_1970 = time.time_ns()
        took = clock.now_ns() - before
        found.append(((took + 1) // 2, since_1970 - before - took // 2))
    error, offset = min(found)
    return offset, error


def placed(profile, steps, readings):
    """The events on this clock, and how far they may be off."""
    if profile["clock"] == "none":
        return in_steps(profile["events"], steps), None
    (first, error), (last, other) = readings
    offset, error = (first + last) // 2, max(error, other) + (abs(last - first) + 1) // 2
    if profile["clock"] == "CLOCK_MONOTONIC":
        offset, error = 0, 0
    return [{**event, "start_ns": event["start_ns"] - offset} for event in profile["events"]], error


def in_steps(events, steps):
    """Events of which only the duration is known and the step: one after another from the step's beginning, in their
    order. Where they are longer than the step together, all are shortened alike."""
    by_step = {}
    for event in events:
        by_step.setdefault(event["step"], []).append(event)
    found = []
    for step, inside in by_step.items():
        start, end = steps[step]
        share = min(1, (end - start) / max(sum(event["duration_ns"] for event in inside), 1))
        for event in inside:
            event = {name: value for name, value in event.items() if name != "step"}
            event |= {"start_ns": start, "duration_ns": int(event["duration_ns"] * share)}
            start += event["duration_ns"]
            found.append(event)
    return found


def overhang(events, steps):
    """How far an event reaches at most over the boundary of the step that most of it lies in."""
    most, ends = 0, [finish for _, finish in steps]
    for event in events:
        start, end = event["start_ns"], event["start_ns"] + event["duration_ns"]
        for begin, finish in steps[bisect_right(ends, start) :]:
            if begin >= end:
                break
            if start < begin and end <= finish:
                most = max(most, min(begin - start, end - begin))
            elif begin <= start and end > finish:
                most = max(most, min(end - finish, finish - start))
    return most

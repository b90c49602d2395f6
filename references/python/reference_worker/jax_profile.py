"""jax's own profiler, its operations named by the part of the decoder that XLA says they were compiled from."""

import re
from pathlib import Path

import jax

MODULE = re.compile(r"^HloModule ([\w.\-]+)")
OPERATION = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = (.*)$")
WRITTEN = re.compile(r'op_name="([^"]*)"')
CALLED = re.compile(r"calls=%?([\w.\-]+)")
COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
PART = re.compile(r"layer \d+ [a-z ]+|embedding|final norm|head")
# What XLA notes of its own threads, and the ends of what it has noted already.
NOISE = re.compile(r"ThreadpoolListener|end: |\$|Wait for ")


class Profile:
    """Runs from when it is made, and puts its files into `directory`."""

    def __init__(self, directory):
        self._directory = directory
        options = jax.profiler.ProfileOptions()
        # Python's own calls would be most of the events.
        options.python_tracer_level = 0
        jax.profiler.start_trace(str(directory), profiler_options=options)

    def end(self, texts):
        """`texts`: the compiled programs as XLA writes them."""
        jax.profiler.stop_trace()
        file = max(Path(self._directory).glob("plugins/profile/*/*.xplane.pb"))
        told = jax.profiler.ProfileData.from_file(str(file))
        notes = [] if texts else ["Nothing was compiled as a whole, so the part of the model is not known."]
        parts = dict(map(parts_of, texts))
        return {"profiler": "jax.profiler", "clock": "CLOCK_REALTIME", "events": list(events(told, parts)), "notes": notes}


def events(told, parts):
    """The events of the CPU's plane that last. Times of the file count from the profiler's start."""
    planes = {plane.name: plane for plane in told.planes}
    started = dict(planes["Task Environment"].stats)["profile_start_time"]
    for line in planes["/host:CPU"].lines:
        for event in line.events:
            if event.duration_ns <= 0 or NOISE.match(event.name):
                continue
            stats = {name: str(value) for name, value in event.stats if name in ("hlo_op", "hlo_module")}
            part = parts.get(stats.get("hlo_module"), {}).get(stats.get("hlo_op"))
            yield {
                "name": event.name, "part": part, "thread": line.name, "start_ns": started + round(event.start_ns),
                "duration_ns": round(event.duration_ns), "details": stats,
            }


def parts_of(text):
    """A program's name, and the part of the model that each of its operations computes.

    An operation has the name under which it was written, `jit(step)/layer 3 mlp/dot_general`; where a fusion has none,
    most of what it calls decides.
    """
    named, inside, calls, computation = {}, {}, {}, None
    for line in text.splitlines():
        begun = COMPUTATION.match(line)
        computation = begun[1] if begun else computation
        operation = OPERATION.match(line)
        if not operation:
            continue
        name, rest = operation.groups()
        called, written = CALLED.search(rest), WRITTEN.search(rest)
        part = PART.search(written[1]) if written else None
        if called:
            calls[name] = called[1]
        if part:
            named[name] = part[0]
            inside.setdefault(computation, []).append(part[0])
    for name, computation in calls.items():
        if name not in named and computation in inside:
            found = inside[computation]
            named[name] = max(set(found), key=found.count)
    return MODULE.match(text)[1], named

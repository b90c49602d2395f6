"""The phases of a measurement, in order, and what is read at their ends."""

from . import clock, turns, work
from .bundle import bad_input, identity_of, sha256_of, unsupported
from .memory import Phase
from .warmup import warm_up


def measure(adapter, task, context, stream, send):
    """`context`: vocabulary, context (longest), mask_token, encoder, graph, spawned_at_ns, weights_file, earlier_peak.
    Turns come from `stream`."""
    if not task["work"]["cases"] or not task["warmup"]["max_iterations"]:
        raise bad_input("a measurement needs cases and warm-up")
    if context.get("anew"):
        raise unsupported(f"{adapter.FRAMEWORK} loads no model anew for every request in a reference")
    if task.get("load"):
        raise unsupported(f"{adapter.FRAMEWORK} serves several callers in no reference: name one of the engines")
    workload = work.of(adapter, task["work"], context)

    phase = Phase()
    before = clock.now_ns()
    workload.prepare(0)
    request = workload.request(0)
    spawned = context["spawned_at_ns"]
    memory = phase.end(adapter)
    cold = {
        "marks_ns": [mark + request.start - before for mark in request.marks],
        "since_spawn_ns": None if spawned is None else max(request.start + request.marks[0] - spawned, 0),
    }
    send("cold_start", **cold, memory=memory)
    peaks = [context["earlier_peak"], memory["peak_bytes"]]
    first = workload.sample(request)

    phase = Phase()
    done = warm_up(workload, task["warmup"], first)
    memory = phase.end(adapter)
    peaks.append(memory["peak_bytes"])
    send("warmup", **done, memory=memory)

    usage, finish = turns.take(workload, task.get("lead_in", 0), stream, send)
    peaks.append(usage["memory"]["peak_bytes"])
    peak = max((peak for peak in peaks if peak is not None), default=None)
    file = context["weights_file"]
    identity = identity_of(file)
    sha256 = sha256_of(file) if finish.get("hash") else None
    send("usage", **usage, peak_bytes=peak, weights_sha256=sha256, weights_identity=identity)

    parity = finish.get("parity")
    if parity:
        workload.parity(parity)
        send("parity", file=parity["file"])


def answer(adapter, task, context, send):
    """Each case's request once, untimed, and the logits along the answers where they are asked for."""
    workload = work.of(adapter, task["work"], context, is_fed=False)
    outputs = [sample["output"] for sample in workload.iteration(0, [])["cases"]]
    parity = task.get("parity")
    if parity:
        along = {**task["work"], "cases": workload.along(outputs)}
        work.of(adapter, along, context).parity(parity)
        send("parity", file=parity["file"])
    send("answered", outputs=outputs)

"""The job loop: one Job, its events, the end."""

import json
import os
import platform

from . import clock, measure, page_cache, score, trace, work
from .bundle import Bundle, WorkerError, bad_input, identity_of, unsupported
from .features import check_features, keep_within_window
from .memory import Phase
from .slowed import Slowed
from .work import encode, heard

VERSION = 13
LARGEST_SLOWDOWN = 10


def line(value):
    return json.dumps(value) + "\n"


def hello(runtime, framework):
    """What the framework is. rustc did not build it, so rule R10 asks for the profile alone."""
    build = {
        "profile": "release", "rustc": None, "rustflags": None, "target_features": None,
        "target": f"{platform.machine()}-{platform.system().lower()}",
        "toolchain": f"{platform.python_implementation()} {platform.python_version()}",
    }
    return {"protocol": VERSION, "framework": framework, **runtime, "slices": True, "build": build}


def serve(load_adapter, stream, start_ns, output):
    """Does the job that `stream` begins with, a line of JSON, and writes its events. The turns of a measurement are
    the lines after it. `start_ns` is the clock at the start of main."""

    def send(event, **fields):
        output.write(line({"event": event, **fields}))
        output.flush()

    try:
        _work(load_adapter, stream, start_ns, send)
    except WorkerError as error:
        send("failed", kind=error.kind, reason=str(error))
        raise
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        send("failed", kind="failed", reason=reason)
        raise


def _runtime(adapter_class, device):
    """Initialises the framework. What frameworks say where there is no GPU is often no sentence."""
    try:
        return adapter_class.runtime()
    except Exception as error:
        if device == "cpu" or isinstance(error, WorkerError):
            raise
        said = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(": ")
        raise WorkerError(f"{adapter_class.FRAMEWORK} finds no {device} that it can use: {said}") from error


def _read_job(stream):
    try:
        job = json.loads(stream.readline())
    except ValueError as error:
        raise bad_input(f"the job does not parse: {error}") from None
    if job["protocol"] != VERSION:
        raise bad_input(f"the driver speaks protocol {job['protocol']}, this worker {VERSION}: build both again")
    task, settings = job["task"], job["settings"]
    if task["kind"] == "probe":
        raise unsupported("the machine is probed by workers in Rust: name one of the engines first")
    slowdown = settings.get("slowdown", 0.0)
    if not 0 <= slowdown <= LARGEST_SLOWDOWN:
        raise bad_input(f"settings.slowdown is {slowdown}: give a share of the time from 0 to {LARGEST_SLOWDOWN}")
    if settings.get("dequantised"):
        raise unsupported("a reference computes in its own way alone: name an engine first")
    return job


def _check_settings(settings, adapter_class):
    shards = settings.get("shards", 1)
    if shards != 1 and not adapter_class.SHARDS:
        raise unsupported(f"its weights are not divided over devices ({shards} were asked for)")
    if settings.get("hidden_states") and not adapter_class.HIDDEN_STATES:
        raise unsupported(f"{adapter_class.FRAMEWORK} gives no access to hidden states here")
    unknown = [name for name in settings.get("options", {}) if name not in adapter_class.OPTIONS]
    if unknown:
        raise bad_input(f"unknown option {unknown[0]!r}; this reference has {', '.join(adapter_class.OPTIONS) or 'none'}")


def _check_model(bundle, adapter_class):
    """Refuses a model of a kind that the adapter does not compute."""
    framework = adapter_class.FRAMEWORK
    if bundle.graph:
        # What else is asked of models is asked of transformers.
        if not adapter_class.GRAPHS:
            raise unsupported(f"{framework} runs no ONNX files here")
        return
    if bundle.encoder and not adapter_class.ENCODES:
        raise unsupported(f"{framework} encodes no texts here")
    if not bundle.encoder and not bundle.causal and not adapter_class.BOTH_WAYS:
        raise unsupported(f"masked diffusion attends both ways, and {framework} is driven here with causal attention alone")
    check_features(bundle, adapter_class)


def _check_sequences(task, bundle, context, hidden_states):
    if bundle.graph:
        raise bad_input("the model is an ONNX file and continues no tokens")
    if bundle.encoder:
        if not hidden_states:
            raise bad_input("an encoder has no logits, and its hidden states are not asked for")
        encode.check({"texts": task["sequences"], "types": task.get("types")}, context)
        return
    lengths = {len(row) for row in task["sequences"]}
    if len(lengths) != 1 or 0 in lengths:
        raise bad_input("sequences of a batch are of one length, of one token at least")
    length = lengths.pop()
    work.check_tokens(task["sequences"], length, context)
    heard.check(task.get("audio") or [], bundle.audio, len(task["sequences"]))
    if not bundle.causal and (task.get("piece") or length) < length:
        raise bad_input("this model attends both ways: a whole sequence is appended in one piece, after begin")


def _work(load_adapter, stream, start_ns, send):
    job = _read_job(stream)
    task, settings, spawned = job["task"], job["settings"], job.get("spawned_at_ns")

    phase = Phase()
    adapter_class = load_adapter()
    if settings["device"] != "cpu" and not adapter_class.GPU:
        raise unsupported(f"{adapter_class.FRAMEWORK} is driven on the CPU here, not on {settings['device']}")
    if settings.get("shards", 1) == 1 or adapter_class.SHARDS:
        adapter_class.configure(settings)
    receipt = hello(_runtime(adapter_class, settings["device"]), adapter_class.FRAMEWORK)
    ready_ns = clock.now_ns()
    started = phase.end()
    send("hello", **receipt)
    startup = None if spawned is None else max(ready_ns - spawned, 0)
    send("started", startup_ns=startup, runtime_ns=ready_ns - start_ns, memory=started)

    _check_settings(settings, adapter_class)
    bundle = Bundle(job["bundle"], job.get("model"))
    _check_model(bundle, adapter_class)
    weights_file = adapter_class.weights_file(bundle, settings)
    if task["kind"] == "trace":
        settings = adapter_class.profiled(settings)
    cache = page_cache.prepare(weights_file, job.get("evict", False))
    identity = identity_of(weights_file)
    phase = Phase()
    before_ns = clock.now_ns()
    adapter = adapter_class(bundle, settings, weights_file)
    after_ns = clock.now_ns()
    memory = phase.end(adapter)
    keep_within_window(bundle, adapter)
    if slowdown := settings.get("slowdown", 0.0):
        adapter = Slowed(adapter, slowdown)
    in_effect = adapter.in_effect()
    is_cached = task.get("work", {}).get("kv_cache") != "off"
    if not is_cached and in_effect["kv_cache"] != "none":
        in_effect["kv_cache"] = "recomputed"
    send(
        "loaded", load_ns=after_ns - before_ns, memory=memory, in_effect=in_effect, weights_file=str(weights_file),
        weights_bytes=os.path.getsize(weights_file), weights_identity=identity, page_cache=cache,
    )

    context = {
        "vocabulary": bundle.vocabulary, "context": bundle.context, "mask_token": bundle.mask_token,
        "encoder": bundle.encoder, "graph": bundle.graph, "audio": bundle.audio,
        "directory": bundle.directory, "hidden": (bundle.model or {}).get("hidden_size"),
        "weights_file": weights_file,
        "earlier_peak": max((m["peak_bytes"] for m in (started, memory) if m["peak_bytes"]), default=None),
        # Put later by what the worker's own readings have taken since.
        "anew": settings.get("anew", False),
        "spawned_at_ns": None if spawned is None else spawned + before_ns - ready_ns + clock.now_ns() - after_ns,
    }
    kind = task["kind"]
    if kind == "measure":
        measure.measure(adapter, task, context, stream, send)
    elif kind == "answer":
        measure.answer(adapter, task, context, send)
    elif kind == "score":
        hidden_states = settings.get("hidden_states", False)
        _check_sequences(task, bundle, context, hidden_states)
        score.score(adapter, task, bundle, hidden_states)
        send("scored", file=task["file"])
    elif kind == "trace":
        phases = [
            {"name": "start-up", "start_ns": start_ns if spawned is None else spawned, "end_ns": ready_ns},
            {"name": "load", "start_ns": before_ns, "end_ns": after_ns},
        ]
        send("traced", **trace.trace(adapter, task, context, phases))
    elif kind != "load":
        raise bad_input(f"unknown task {kind!r}")
    send("done")

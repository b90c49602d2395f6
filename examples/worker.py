#!/usr/bin/env python3
"""A whole worker. Its model is the bundle's first and last matrix alone: put your framework into `logits`."""
import hashlib, json, os, sys
from time import monotonic_ns as now
BEGAN = now()
import numpy as np
from safetensors.numpy import load_file, save_file
out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # stdout belongs to the protocol: what anything else prints goes to stderr
HELLO = {"protocol": 12, "framework": "numpy", "binding": f"numpy {np.__version__}", "library": f"numpy {np.__version__}",
         "build": {"profile": "release", "toolchain": f"CPython {sys.version.split()[0]}"}}
IN_EFFECT = {"precision": "f32", "activations": "f32", "kv_cache_precision": "f32", "kv_cache": "growing",
             "device": "cpu", "threads": int(os.environ.get("OPENBLAS_NUM_THREADS", 1)), "jit": "none",
             "weight_storage": "one copy in memory", "kernels": ["numpy matmul"]}


def send(event, **fields):
    print(json.dumps({"event": event, **fields}), file=out, flush=True)


def memory():
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return {"peak_bytes": 1024 * int(status["VmHWM"].split()[0]), "method": "VmHWM of the process so far"}


def logits(tokens):
    """f32 [batch, n, vocabulary] for token ids [batch][n]. The last ones are kept for the turn `logits`."""
    embedding = weights["model.embed_tokens.weight"]
    logits.last = embedding[tokens] @ weights.get("lm_head.weight", embedding).T
    return logits.last


def request(number, case, count):
    """One request, timed: the prompt, then one token after the other, of the trace or, without one, of its own."""
    marks, tokens, feed, begun = [], [], case["prompts"], now()
    for step in range(count):
        tokens.append(logits(feed)[:, -1].argmax(-1))
        marks.append(now() - begun)
        feed = [[row[step]] for row in case["trace"]] or tokens[-1][:, None]
    return {"case": number, "marks_ns": marks, "output": {"tokens": np.transpose(tokens).tolist()}}


def work(job):
    global weights
    task, of = job["task"], job["task"].get("work", {"kind": "generate", "kv_cache": "on"})
    asked = (job["protocol"], job["settings"]["precision"], job["settings"]["device"], of["kind"], of.get("kv_cache"))
    if asked != (12, "f32", "cpu", "generate", "on") or task["kind"] not in ("load", "measure"):
        raise NotImplementedError("it can load, and generate in f32 on the CPU with a KV cache, by protocol 12")
    send("hello", **HELLO)
    send("started", runtime_ns=now() - BEGAN, memory=memory())
    file, start = f"{job['bundle']}/f32.safetensors", now()
    weights = load_file(file)
    send("loaded", load_ns=now() - start, memory=memory(), in_effect=IN_EFFECT, weights_file=file,
         weights_bytes=os.path.getsize(file))
    if task["kind"] == "load":
        return
    cases, count, wall_ns = of["cases"], of["new_tokens"], 0
    cold = request(0, cases[0], count)
    send("cold_start", marks_ns=cold["marks_ns"], memory=memory())
    warm = [[request(*each, count) for each in enumerate(cases)] for _ in range(task["warmup"]["max_iterations"])]
    iterations = [{"index": index, "cases": samples} for index, samples in enumerate(warm)]
    send("warmup", iterations=iterations, settled=False, memory=memory())
    while (turn := json.loads(sys.stdin.readline()))["turn"] != "finish":
        number, case, ids = turn["case"], cases[turn["case"]], turn.get("tokens")
        if turn["turn"] == "prepare":  # counts in no figure
            request(number, case, max(1, task["lead_in"]))
            send("ready", case=number)
            continue
        if turn["turn"] == "logits":  # of the last step: nothing is computed for it
            send("logits", case=number, values=np.where(np.isfinite(x := logits.last[:, -1, ids]), x, None).tolist())
            continue
        sample = request(number, {**case, "trace": [], **turn["input"]["continue"]} if "input" in turn else case, count)
        wall_ns += sample["marks_ns"][-1]
        send("sample", **sample)
    sha256 = hashlib.sha256(open(file, "rb").read()).hexdigest() if turn["hash"] else None
    send("usage", memory=memory(), wall_ns=wall_ns, weights_sha256=sha256)
    if parity := turn["parity"]:
        rows = [np.hstack([case[part] for part in ("context", "prompts", "trace") if case[part]]) for case in cases]
        kept = -1 - count if parity["prompt_last_only"] else 0
        save_file({f"case.{n}": logits(ids)[:, kept:].copy() for n, ids in enumerate(rows)}, parity["file"])
        send("parity", file=parity["file"])


try:
    if sys.argv[1:] == ["--hello"]:
        send("hello", **HELLO)
    else:
        work(json.loads(sys.stdin.readline()))
        send("done")
except Exception as error:
    kind = "unsupported" if isinstance(error, NotImplementedError) else "failed"
    send("failed", kind=kind, reason=f"{type(error).__name__}: {error}")
    sys.exit(1)

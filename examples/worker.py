#!/usr/bin/env python3
"""A whole worker. Replace the class `Model` by your framework; docs/reference/protocol.md defines the rest."""
import hashlib, json, os, sys
from time import monotonic_ns as now
BEGAN = now()
import numpy as np, safetensors.numpy as files
out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # stdout belongs to the protocol: what anything else prints goes to stderr
HELLO = {"protocol": 13, "framework": "numpy", "binding": "numpy", "library": f"numpy {np.__version__}",
         "build": {"profile": "release", "toolchain": f"CPython {sys.version.split()[0]}"}}
IN_EFFECT = {"precision": "f32", "activations": "f32", "kv_cache_precision": "f32", "kv_cache": "preallocated",
             "device": "cpu", "threads": len(os.listdir("/proc/self/task")), "jit": "none",
             "weight_storage": "one copy in memory", "kernels": ["numpy matmul"]}
ABLE = {"protocol": [13], "task": ["load", "measure"], "kind": ["load", "generate"], "kv_cache": [None, "on"],
        "precision": ["f32"], "kv_precision": [None, "f32"], "device": ["cpu"], "load": [None], "prefill_chunk": [None],
        "rms_norm": [True], "gated": [True], "qkv_bias": [False], "features": [None, []], "form": [None]}

class Model:
    """THE PART TO REPLACE: a llama. It has the weights and the state of one request, of texts of one length."""
    def __init__(self, file, of):  # `of`: the description of the model in the job
        self.of, self.weights = of, files.load_file(file)
    def begin(self, context, room):  # allocates the cache of a request, and appends the context, which may be empty
        size = len(self.of["layers"]), 2, len(context), self.of["kv_heads"], len(context[0]) + room, self.of["head_dim"]
        self.cache, self.length = np.zeros(size, np.float32), 0
        if context[0]:
            self.append(context)
    def append(self, tokens, every=False):  # [batch][n] → logits [batch, n, vocabulary]: of the last, or of every one
        (batch, n), of, names, begin = np.shape(tokens), self.of, self.of["tensors"], self.length
        heads, kv_heads, size, end = of["heads"], of["kv_heads"], of["head_dim"], begin + n
        angles = np.float32(np.r_[begin:end])[:, None] * np.float32(of["rotations"][0]["inverse_frequencies"])
        cos, sin, self.length, x = np.cos(angles), np.sin(angles), end, self.weights[names["embedding"]][tokens]
        mask = np.where(np.arange(end) > np.arange(begin, end)[:, None], np.float32(-np.inf), np.float32(0))
        for layer, (keys, values) in zip(names["layers"], self.cache):
            qkv = self.linear(self.norm(x, layer["attention_norm"]), layer["qkv"]).reshape(batch, n, -1, size)
            (one, two), qkv = np.split(qkv.swapaxes(1, 2)[:, :heads + kv_heads], 2, -1), qkv.swapaxes(1, 2)
            rotated = np.concatenate([one * cos - two * sin, two * cos + one * sin], -1)
            keys[:, :, begin:end], values[:, :, begin:end] = rotated[:, heads:], qkv[:, heads + kv_heads:]
            q = rotated[:, :heads].reshape(batch, kv_heads, -1, n, size)
            scores = q @ keys[:, :, None, :end].swapaxes(3, 4) / np.sqrt(np.float32(size)) + mask
            scores = np.exp(scores - scores.max(-1, keepdims=True))
            mixed = (scores / scores.sum(-1, keepdims=True) @ values[:, :, None, :end]).reshape(batch, heads, n, size)
            x = x + self.linear(mixed.swapaxes(1, 2).reshape(batch, n, -1), layer["output"])
            gate, up = np.split(self.linear(self.norm(x, layer["mlp_norm"]), layer["gate_up"]), 2, -1)
            x = x + self.linear(gate / (1 + np.exp(-gate)) * up, layer["down"])
        return self.norm(x if every else x[:, -1:], names["final_norm"]) @ self.weights[names["lm_head"]].T
    def linear(self, x, of):
        return np.concatenate([x @ self.weights[name].T for name in of["weights"]], -1)
    def norm(self, x, of):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.of["norm_epsilon"]) * self.weights[of["weight"]]

def send(event, **fields):
    print(json.dumps({"event": event, **fields}), file=out, flush=True)
def memory():
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return {"peak_bytes": 1024 * int(status["VmHWM"].split()[0]), "method": "VmHWM of the process so far"}
def request(model, number, case, count, began):  # the prompt, then tokens: of the trace, if there is one, or its own
    marks, tokens, feed = [], [], case["prompts"]
    for step in range(count):
        model.last = model.append(feed)[:, -1]
        tokens.append(model.last.argmax(-1))
        marks.append(now() - began)
        feed = [[row[step]] for row in case["trace"]] or tokens[-1][:, None]
    return {"case": number, "marks_ns": marks, "output": {"tokens": np.transpose(tokens).tolist()}}
def parity(model, case, of):  # in pieces: context and prompt, `steps` tokens of the trace each by itself, its rest
    pieces = [np.hstack([case["context"], case["prompts"]]).astype(int)]
    pieces += np.split(np.array(case["trace"]), range(1, of["steps"] + 1)[:len(case["trace"][0]) - 1], 1)
    model.begin([[]] * len(case["prompts"]), sum(piece.shape[1] for piece in pieces))
    return np.hstack([model.append(piece, n > 0 or not of["prompt_last_only"]) for n, piece in enumerate(pieces)])

def measure(model, task, file):
    count, warm, ran, gaps, wall_ns = task["work"]["new_tokens"], task["warmup"], [], 1, 0
    cases = [{**case, "context": case.get("context") or [[]] * len(case["prompts"])} for case in task["work"]["cases"]]
    prepare = lambda case: model.begin(case["context"], len(case["prompts"][0]) + count)
    start, _ = now(), prepare(cases[0])
    send("cold_start", marks_ns=request(model, 0, cases[0], count, start)["marks_ns"], memory=memory())
    start, settled = now(), False
    while not ran or not settled and len(ran) < warm["max_iterations"] and now() - start < warm["max_ns"]:
        samples = [prepare(case) or request(model, number, case, count, now()) for number, case in enumerate(cases)]
        ran.append({"index": len(ran), "cases": samples})
        last, gaps = gaps, np.hstack([np.diff(sample["marks_ns"]) for sample in samples])
        settled = bool(abs(np.median(gaps / last) - 1) < warm["settled_within"]) and len(ran) >= warm["min_iterations"]
    send("warmup", iterations=ran, settled=settled, memory=memory())
    while (turn := json.loads(sys.stdin.readline()))["turn"] != "finish":
        number, case = turn["case"], cases[turn["case"]]
        if turn["turn"] == "prepare":  # room, context and lead-in count in no figure
            prepare(case) or request(model, number, case, task["lead_in"], now())
            prepare(case)
            send("ready", case=number)
        elif turn["turn"] == "logits":  # of the last step: nothing is computed for it
            send("logits", case=number, values=model.last[:, turn["tokens"]].tolist())
        else:
            case = {**case, "trace": [], **turn["input"]["continue"]} if "input" in turn else case
            sample = request(model, number, case, count, now())
            wall_ns += sample["marks_ns"][-1]
            send("sample", **sample)
    send("usage", memory=memory(), peak_bytes=memory()["peak_bytes"], kv_cache_bytes=model.cache.nbytes,
         wall_ns=wall_ns, weights_sha256=hashlib.sha256(open(file, "rb").read()).hexdigest() if turn["hash"] else None)
    if of := turn["parity"]:
        files.save_file({f"case.{n}": parity(model, case, of) for n, case in enumerate(cases)}, of["file"])
        send("parity", file=of["file"])

def work(job):
    task, file, mlp = job["task"], f"{job['bundle']}/f32.safetensors", job["model"]["layers"][0]["feed"].get("mlp", {})
    asked = {**mlp, **job, **job["model"], **job["settings"], **task, **task.get("work", {}), "task": task["kind"]}
    if lacks := [f"{name} {asked.get(name)!r}" for name, able in ABLE.items() if asked.get(name) not in able]:
        raise NotImplementedError("it does not compute " + ", ".join(lacks))
    send("hello", **HELLO)
    send("started", runtime_ns=now() - BEGAN, memory=memory())
    start, model = now(), Model(file, job["model"])
    send("loaded", load_ns=now() - start, memory=memory(), in_effect=IN_EFFECT, weights_file=file,
         weights_bytes=os.path.getsize(file))
    if task["kind"] == "measure":
        measure(model, task, file)
    send("done")

try:
    send("hello", **HELLO) if sys.argv[1:] == ["--hello"] else work(json.loads(sys.stdin.readline()))
except Exception as error:
    send("failed", kind="unsupported" if isinstance(error, NotImplementedError) else "failed", reason=repr(error))
    sys.exit(1)

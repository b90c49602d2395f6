"""A framework for tests: what it computes is what the crate `engine-mock` computes, so that the two agree."""

import time
from array import array

from . import Base

MASK = (1 << 64) - 1


def mix(z):
    """The finaliser of splitmix64 (Steele, Lea & Flood 2014)."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


class Adapter(Base):
    FRAMEWORK = "fake"
    FEATURES = None
    OPTIONS = ("perturb", "kv_cache", "step_ms", "profiler")
    BOTH_WAYS = True
    GRAPHS = True
    HEARS = True

    @staticmethod
    def runtime():
        return {"binding": "fake 1", "library": "fake", "library_path": None, "cpu_capability": None}

    def __init__(self, bundle, settings, weights_file):
        self._vocabulary, self._settings, self._graph = bundle.vocabulary, settings, bundle.graph
        options = settings.get("options", {})
        self._perturb = float(options.get("perturb", 0))
        self._policy = options.get("kv_cache", "growing") if bundle.causal and not bundle.graph else "none"
        self._profiler, self._events = options.get("profiler"), None
        self._step_s = float(options.get("step_ms", 0)) / 1e3

    def in_effect(self):
        return {
            "precision": self._settings["precision"], "activations": "f32", "kv_cache_precision": "f32",
            "kv_cache": self._policy, "device": "cpu", "threads": self._settings["threads"], "jit": "none (fake)",
            "optimised": None, "weight_storage": "none (fake)", "kernels": ["arithmetic"],
        }

    def begin(self, batch, capacity):
        self._states = [0xCBF29CE484222325] * batch

    def listen(self, frames):
        heard = 1
        for bits in memoryview(frames).cast("B").cast("I"):
            heard = mix(heard ^ bits)
        self._states = [mix(state ^ heard) for state in self._states]

    def append(self, tokens, every):
        start = time.time_ns()
        time.sleep(self._step_s)
        self._positions = len(tokens[0]) if every else 1
        if self._events is not None:
            self._note(start, time.time_ns())
        logits = array("f")
        for sequence, row in enumerate(tokens):
            for position, token in enumerate(row):
                state = self._states[sequence] = mix(self._states[sequence] ^ token)
                if every or position + 1 == len(row):
                    for index in range(self._vocabulary):
                        spread = mix(state ^ (index * 0x9E3779B97F4A7C15 & MASK))
                        logits.append((spread >> 40) / (1 << 20) + (self._perturb if index % 2 else 0.0))
        return logits

    def argmax(self, logits):
        rows = (logits[at : at + self._vocabulary] for at in range(0, len(logits), self._vocabulary))
        return [row.index(max(row)) for row in rows]

    def array(self, logits):
        """Lists in place of numpy's dimensions, which are not needed here."""
        rows = [logits[at : at + self._vocabulary] for at in range(0, len(logits), self._vocabulary)]
        return [rows[at : at + self._positions] for at in range(0, len(rows), self._positions)]

    def values(self, logits):
        return logits.tobytes()

    def feed(self, inputs):
        self._inputs = inputs

    def run_graph(self):
        time.sleep(self._step_s)
        self._first = self._inputs[0][1]

    def graph_outputs(self):
        """Each is the first input."""
        return [(output["name"], self._first.astype(output["dtype"])) for output in self._graph["outputs"]]

    def begin_profile(self, directory):
        if self._profiler is None:
            return super().begin_profile(directory)
        self._events, self._steps = [], 0

    def _note(self, start, end):
        event = {"name": "sleep", "part": "layer 0 mlp", "thread": "main", "duration_ns": end - start, "details": {}}
        clock = {"start_ns": start} if self._profiler == "CLOCK_REALTIME" else {"step": self._steps}
        self._events.append({**event, **clock})
        self._steps += 1

    def end_profile(self):
        notes = ["What it sleeps is all that it does."]
        return {"profiler": "the fake's profiler", "clock": self._profiler, "events": self._events, "notes": notes}

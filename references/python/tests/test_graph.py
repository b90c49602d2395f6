"""Runs of ONNX files: what their inputs are, what a request gives, and what is refused. What computes arrays needs
numpy and is left out without."""

import base64
import importlib.util
import io
import json
import math
import struct
import sys
import tempfile
import unittest
import unittest.mock
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from reference_worker import clock, serve, work
from reference_worker.adapters.fake import Adapter
from reference_worker.bundle import GRAPH_FILE, Bundle, WorkerError
from reference_worker.slowed import Slowed
from reference_worker.work import graph

HAS_NUMPY = importlib.util.find_spec("numpy") is not None
MASK = (1 << 64) - 1
# As `struct` calls them.
FLOATS = {"float16": "e", "float32": "f", "float64": "d"}
WHOLE = {
    "int8": "b", "int16": "h", "int32": "i", "int64": "q", "uint8": "B", "uint16": "H", "uint32": "I", "uint64": "Q",
}

GRAPH = {
    "opset": 17, "bytes": 4, "stored": None, "operators": {},
    "inputs": [{"name": "a", "dtype": "float32", "shape": ["n", 2]}, {"name": "b", "dtype": "int64", "shape": None}],
    "outputs": [{"name": "y", "dtype": "float32"}, {"name": "z", "dtype": "int64"}],
}
CONTEXT = {"vocabulary": 0, "context": 0, "mask_token": None, "encoder": None, "graph": GRAPH}


def drawn(dtype, elements, low, high, seed):
    """The values as bytes, one after another by the formula of docs/reference/protocol.md."""
    data = b""
    for place in range(1, elements + 1):
        bits = (seed + place * 0x9E3779B97F4A7C15) & MASK
        bits = ((bits ^ bits >> 30) * 0xBF58476D1CE4E5B9) & MASK
        bits = ((bits ^ bits >> 27) * 0x94D049BB133111EB) & MASK
        bits ^= bits >> 31
        value = low + (bits >> 40) / (1 << 24) * (high - low)
        if dtype == "float16":
            (value,) = struct.unpack("<f", struct.pack("<f", value))
        if dtype in FLOATS:
            data += struct.pack("<" + FLOATS[dtype], value)
        elif dtype == "bool":
            data += bytes([math.floor(value) != 0])
        else:
            width = 8 * struct.calcsize("<" + WHOLE[dtype])
            least, largest = (0, (1 << width) - 1) if dtype[0] == "u" else (-(1 << width - 1), (1 << width - 1) - 1)
            data += struct.pack("<" + WHOLE[dtype], min(max(math.floor(value), least), largest))
    return data


def feed(name, shape, **values):
    return {"name": name, "shape": shape, "values": values or {"drawn": {"low": 0.0, "high": 9.0}}}


def job(*inputs, seed=1):
    return {"kind": "graph", "cases": [{"inputs": list(inputs) or [feed("a", [3, 2]), feed("b", [2])], "seed": seed}]}


class Fake(Adapter):
    """The fake framework with a graph, without a bundle."""

    def __init__(self):
        self._graph, self._step_s = GRAPH, 0


@unittest.skipUnless(HAS_NUMPY, "numpy is not installed")
class Inputs(unittest.TestCase):
    def test_drawn_values_are_those_of_the_formula(self):
        ranges = ((0.0, 1.0), (-3.5, 250.25), (7.0, 7.0), (-1e20, 1e20), (0.1, 0.30000001), (-70000, 70000))
        for dtype in (*FLOATS, *WHOLE, "bool"):
            for low, high in ranges:
                if dtype == "float16" and abs(high) > 65504:
                    # `struct` packs no infinity in its place.
                    continue
                for seed in (0, 1, MASK):
                    found = graph.drawn(dtype, 999, {"low": low, "high": high}, seed)
                    self.assertEqual(found.dtype.name, dtype)
                    self.assertEqual(found.tobytes(), drawn(dtype, 999, low, high, seed), (dtype, low, high, seed))
        infinite = graph.drawn("float16", 9, {"low": -1e20, "high": 1e20}, 1)
        self.assertTrue(all(math.isinf(value) for value in infinite))

    def test_places_are_drawn_apart_and_alike_for_one_seed(self):
        feeds = [feed("a", [4, 2]), feed("b", [4, 2]), feed("c", [])]
        types = [(name, "float32") for name in "abc"]
        first, again, other = (graph.sets({"inputs": feeds}, types, seed, False)[0] for seed in (5, 5, 6))
        self.assertEqual([name for name, _ in first], ["a", "b", "c"])
        self.assertEqual([array.shape for _, array in first], [(4, 2), (4, 2), ()])
        lists = [[array.tolist() for _, array in arrays] for arrays in (first, again, other)]
        self.assertEqual(lists[0], lists[1])
        self.assertNotEqual(lists[0][0], lists[0][1])
        self.assertNotEqual(lists[0][0], lists[2][0])
        of_second = (5 + 0xD1B54A32D192ED03) & MASK
        self.assertEqual(first[1][1].tobytes(), drawn("float32", 8, 0.0, 9.0, of_second))

    def test_a_file_has_the_numbers_alone(self):
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "b"
            path.write_bytes(struct.pack("<3q", 1, -2, 1 << 40))
            ((_, array),), = graph.sets({"inputs": [feed("b", [3, 1], file=str(path))]}, [("b", "int64")], 1, False)
            self.assertEqual(array.tolist(), [[1], [-2], [1 << 40]])
            array[0] = 5
            wrong = ((path, [2], "b has 24 bytes, not 16$"), (path.with_name("c"), [3], "No such file"))
            for file, shape, said in wrong:
                with self.assertRaisesRegex(WorkerError, said) as refused:
                    graph.sets({"inputs": [feed("b", shape, file=str(file))]}, [("b", "int64")], 1, False)
                self.assertEqual(refused.exception.kind, "input")


    def test_a_file_has_a_part_for_each_run_and_is_rotated_where_it_is_long(self):
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "b"
            path.write_bytes(bytes(range(4)))
            case = {"inputs": [feed("b", [2], file=str(path))], "sets": 2}
            runs = [array.tolist() for ((_, array),) in graph.sets(case, [("b", "uint8")], 1, True)]
            self.assertEqual(runs, [[0, 1], [2, 3]])
            path.write_bytes(bytes(number % 256 for number in range(graph.ROTATED)))
            case = {"inputs": [feed("b", [graph.ROTATED], file=str(path))]}
            (((_, array),),) = graph.sets(case, [("b", "uint8")], graph.ROTATED + 3, True)
            self.assertEqual(array[:2].tolist(), [3, 4])


@unittest.skipUnless(HAS_NUMPY, "numpy is not installed")
class Runs(unittest.TestCase):
    def test_a_request_has_one_mark_and_the_graph_s_outputs(self):
        for adapter in (Fake(), Slowed(Fake(), 0.1)):
            running = work.of(adapter, job(), CONTEXT)
            sample = running.sample(running.request(0))
            self.assertEqual(len(sample["marks_ns"]), 1)
            first, second = sample["output"]["tensors"]
            expected = drawn("float32", 6, 0.0, 9.0, 1)
            self.assertEqual({**first, "data": base64.b64decode(first["data"])},
                             {"name": "y", "dtype": "float32", "shape": [3, 2], "data": expected})
            whole = [int(value) for value in struct.unpack("<6f", expected)]
            self.assertEqual((second["name"], second["dtype"]), ("z", "int64"))
            self.assertEqual(struct.unpack("<6q", base64.b64decode(second["data"])), tuple(whole))

    def test_runs_of_a_sequence_are_fed_with_the_outputs_before(self):
        sequence = job()
        sequence["cases"][0].update(sets=3, state=[{"output": "y", "input": "a"}])
        running = work.of(Fake(), sequence, CONTEXT)
        sample = running.sample(running.request(0))
        self.assertEqual(len(sample["marks_ns"]), 3)
        tensors = sample["output"]["tensors"]
        # What is fed to the next run is given of the last alone. The fake graph gives its first input back.
        self.assertEqual([tensor["name"] for tensor in tensors], ["z", "z", "y", "z"])
        self.assertEqual(len({tensor["data"] for tensor in tensors if tensor["name"] == "z"}), 1)
        del sequence["cases"][0]["state"]
        running = work.of(Fake(), sequence, CONTEXT)
        tensors = running.sample(running.request(0))["output"]["tensors"]
        self.assertEqual(len({tensor["data"] for tensor in tensors[::2]}), 3)

    def test_a_request_may_bring_a_seed_of_its_own(self):
        running = work.of(Fake(), job(), CONTEXT)
        data = lambda given: running.output(running.request(0, given))["tensors"][0]["data"]
        running.check(0, {"seed": MASK})
        self.assertEqual(base64.b64decode(data({"seed": MASK})), drawn("float32", 6, 0.0, 9.0, MASK))
        self.assertEqual(data({"seed": 1}), data(None))

    def test_the_clock_runs_while_the_graph_does(self):
        order = []

        class Watched(Fake):
            def feed(self, inputs):
                order.append("feed")
                super().feed(inputs)

            def run_graph(self):
                order.append("run")
                super().run_graph()

            def graph_outputs(self):
                order.append("outputs")
                return super().graph_outputs()

        running = work.of(Watched(), job(), CONTEXT)
        with unittest.mock.patch.object(clock, "now_ns", lambda: order.append("clock") or 0):
            running.sample(running.request(0))
        self.assertEqual(order, ["feed", "clock", "run", "clock", "outputs"])


class Refusals(unittest.TestCase):
    def test_inputs_are_the_graph_s_in_its_order(self):
        for inputs in ([feed("a", [3, 2])], [feed("b", [2]), feed("a", [3, 2])], [feed("a", [1]), feed("c", [1])]):
            with self.assertRaisesRegex(WorkerError, "a tensor for each input of the graph, in its order"):
                work.of(Fake(), job(*inputs), CONTEXT)

    def test_a_request_is_given_a_seed_alone(self):
        running = work.of(Fake(), job(), CONTEXT)
        seeds = ({"seed": seed} for seed in (-1, MASK + 1, 0.5, None))
        for given in ({"continue": {}}, {"seed": 1, "continue": {}}, {}, *seeds):
            with self.assertRaisesRegex(WorkerError, "may be given a seed alone"):
                running.check(0, given)

    def test_a_model_is_a_graph_or_is_none(self):
        with self.assertRaisesRegex(WorkerError, "the model is no ONNX file"):
            work.of(Fake(), job(), {**CONTEXT, "graph": None})
        others = {"generate": "continues no tokens", "denoise": "continues no tokens", "encode": "encodes no texts"}
        for kind, said in others.items():
            with self.assertRaisesRegex(WorkerError, f"the model is an ONNX file and {said}"):
                work.of(Fake(), {"kind": kind}, CONTEXT)

    def test_a_framework_may_run_none(self):
        adapter = Fake()
        adapter.GRAPHS = False
        with self.assertRaisesRegex(WorkerError, "fake runs no ONNX files here") as refused:
            work.of(adapter, job(), CONTEXT)
        self.assertEqual(refused.exception.kind, "unsupported")

    def test_there_are_no_logits(self):
        with self.assertRaisesRegex(WorkerError, "no logits"):
            work.of(Fake(), job(), CONTEXT).parity({})


class Jobs(unittest.TestCase):
    """Whole jobs, in memory, on the fake framework."""

    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.directory = Path(temporary.name)
        (self.directory / GRAPH_FILE).write_bytes(b"none")
        (self.directory / "config.json").write_text(json.dumps({"model_type": "onnx", "graph": GRAPH}))
        record = {"sha256": "", "bytes": 4, "derived": ""}
        manifest = {"format": 1, "name": "n", "files": {GRAPH_FILE: record, "config.json": record}}
        (self.directory / "manifest.json").write_text(json.dumps(manifest))

    def serve(self, task, turns=(), adapter=Adapter, **settings):
        settings = {"precision": "f32", "device": "cpu", "threads": 1, **settings}
        # As the driver describes it.
        model = {"vocab_size": 0, "max_positions": 0, "causal": False, "encoder": None, "graph": GRAPH, "form": {}}
        job = {"protocol": serve.VERSION, "bundle": str(self.directory), "settings": settings, "task": task}
        job["model"] = model
        stream, output = io.BytesIO("".join(map(serve.line, [job, *turns])).encode()), io.StringIO()
        try:
            serve.serve(lambda: adapter, stream, 0, output)
        except WorkerError:
            pass
        return [json.loads(line) for line in output.getvalue().splitlines()]

    def test_a_bundle_may_be_an_onnx_file(self):
        for model in (None, {"graph": GRAPH, "vocab_size": 0, "max_positions": 0, "causal": False}):
            bundle = Bundle(self.directory, model)
            self.assertEqual((bundle.graph, bundle.vocabulary, bundle.context), (GRAPH, 0, 0))
            self.assertEqual(bundle.weights_path("f32"), self.directory / GRAPH_FILE)
            with self.assertRaisesRegex(WorkerError, "in the precision that it is stored in, which goes by f32"):
                bundle.weights_path("f16")

    def test_it_is_loaded_as_it_is(self):
        loaded = self.serve({"kind": "load"})[2]
        self.assertEqual((loaded["event"], loaded["weights_bytes"]), ("loaded", 4))
        self.assertEqual(loaded["weights_file"], str(self.directory / GRAPH_FILE))
        self.assertEqual(loaded["in_effect"]["kv_cache"], "none")

    def test_what_does_not_run_it_says_so_before_the_load(self):
        class Without(Adapter):
            GRAPHS = False

            def __init__(self, *_):
                raise AssertionError("it is not loaded")

        load, score = {"kind": "load"}, {"kind": "score", "sequences": [[1]], "file": "x"}
        refusals = (
            (self.serve(load, adapter=Without), "unsupported", "unsupported: fake runs no ONNX files here"),
            (self.serve(load, precision="bf16"), "input",
             "an ONNX file runs in the precision that it is stored in, which goes by f32"),
            (self.serve(score), "input", "the model is an ONNX file and continues no tokens"),
        )
        for events, kind, reason in refusals:
            self.assertEqual((events[-1]["kind"], events[-1]["reason"]), (kind, reason))

    @unittest.skipUnless(HAS_NUMPY, "numpy is not installed")
    def test_it_is_measured_as_other_models_are(self):
        limits = {"min_iterations": 1, "max_iterations": 2, "max_ns": 10**9, "settled_within": 0.5}
        request = {"turn": "request", "case": 0}
        piece, finish = {"turn": "slice", "case": 0, "marks": 1}, {"turn": "finish"}
        turns = [request, {**request, "input": {"seed": 9}}, piece, finish]
        events = self.serve({"kind": "measure", "work": job(), "warmup": limits}, turns)
        names = [event["event"] for event in events[3:]]
        self.assertEqual(names, ["cold_start", "warmup", *["sample"] * 3, "usage", "done"])
        outputs = [event["output"] for event in events[5:8]]
        self.assertEqual(outputs[0], outputs[2])
        self.assertNotEqual(outputs[0], outputs[1])
        answered = self.serve({"kind": "answer", "work": job()})[-2]
        self.assertEqual(answered["outputs"], outputs[:1])
        refused = self.serve({"kind": "answer", "work": job(), "parity": {"file": "x"}})[-1]
        self.assertEqual(refused["reason"], "requests that run a graph have no logits")


if __name__ == "__main__":
    unittest.main()

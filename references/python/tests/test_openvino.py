"""What OpenVINO's graph of an encoder is given and what is read of it, which weights are refused, and how ONNX files
run. It needs OpenVINO and is left out without; what the graphs compute is compared by conformance.py."""

import importlib.util
import math
import sys
import tempfile
import types
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from reference_worker.bundle import WorkerError

IS_HERE = importlib.util.find_spec("openvino") is not None
if IS_HERE:
    import numpy
    import openvino

    from reference_worker import openvino_encoder, openvino_onnx
    from reference_worker.adapters.openvino import Adapter, held, require_weights

TEXTS = [[5, 6, 7], [8]]
ENCODER = {"pad_token": 1, "token_types": 2}


def bucket(apart, buckets=32, distance=128):
    """T5's formula, for a key so far behind its query."""
    half = buckets // 2
    exact, side, away = half // 2, half if apart > 0 else 0, abs(apart)
    if away < exact:
        return side + away
    share = math.log(away / exact) / math.log(distance / exact)
    return side + min(exact + int(share * (half - exact)), half - 1)


@unittest.skipUnless(IS_HERE, "OpenVINO is not installed")
class OfItsImport(unittest.TestCase):
    def test_it_sends_no_message(self):
        from openvino.tools import ovc

        self.assertEqual(type(ovc.telemetry).__module__, "openvino.tools.ovc.telemetry_stub")


@unittest.skipUnless(IS_HERE, "OpenVINO is not installed")
class OfAnEncoder(unittest.TestCase):
    def inputs(self, pooling, types=None, **encoder):
        arrays = openvino_encoder.inputs(TEXTS, types, {**ENCODER, **encoder}, pooling)
        return {name: array.tolist() for name, array in arrays.items()}

    def test_texts_are_padded_to_the_longest_with_a_mask(self):
        given = self.inputs("mean", types=[[0, 1, 1], [1]])
        self.assertEqual(given["ids"], [[5, 6, 7], [8, 1, 1]])
        self.assertEqual(given["tokens"], [[1, 1, 1], [1, 0, 0]])
        self.assertEqual(given["types"], [[0, 1, 1], [1, 0, 0]])
        self.assertEqual(self.inputs("mean")["types"], [[0, 0, 0], [0, 0, 0]])
        self.assertNotIn("types", self.inputs("mean", token_types=0))

    def test_a_vector_is_the_mean_of_the_tokens_that_its_pooling_names(self):
        tokens, first, last = [[1, 1, 1], [1, 0, 0]], [[1, 0, 0], [1, 0, 0]], [[0, 0, 1], [1, 0, 0]]
        for pooling, meant in (("mean", tokens), ("max", tokens), ("cls", first), ("last", last)):
            self.assertEqual(self.inputs(pooling)["meant"], meant, pooling)

    def test_what_is_asked_for_is_an_output(self):
        asked = openvino_encoder.asked
        self.assertEqual(asked(ENCODER, {"pooling": "cls"}), ("cls", "vectors"))
        self.assertEqual(asked(ENCODER, {"pooling": "max"}), ("max", "largest"))
        self.assertEqual(asked({"head": {"of": {"texts": "last"}}}, None), ("last", "scores"))
        self.assertEqual(asked({"head": {"of": "tokens"}}, None)[1], "scores")

    def test_relative_positions_have_the_rows_of_the_formula(self):
        # At the exact powers the logarithm's rounding in f32 decides, and is PyTorch's.
        apart = [apart for apart in range(-300, 301) if abs(apart) not in (16, 32, 64)]
        rows = openvino_encoder.buckets({"buckets": 32, "distance": 128}, numpy.array(apart))
        self.assertEqual(rows.tolist(), [bucket(each) for each in apart])

    def test_weights_of_another_precision_are_refused_but_for_those_of_a_head(self):
        nodes = {"FullyConnected i8": 8, "FullyConnected f32": 2, "MVN f32": 5}
        head = {"head": {"of": "tokens", "dense": {"activation": "tanh"}}}
        require_weights(nodes, "int8", head)
        for encoder, precision in ((None, "int8"), ({}, "int8"), ({"head": {"of": "tokens"}}, "int8"), (head, "bf16")):
            with self.assertRaisesRegex(WorkerError, "2 with f32"):
                require_weights(nodes, precision, encoder)

    def test_weights_are_of_the_precision_that_all_products_say(self):
        for nodes, precision in (("bf16", "bf16"), ("i8", "int8"), ("bf16 f32", "f32"), ("u8", "f32"), ("", "f32")):
            named = {f"FullyConnected {kind}": 1 for kind in nodes.split()}
            self.assertEqual(held({**named, "MVN f32": 2}, "f32"), precision, nodes)


def varint(number):
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)


def message(*fields):
    """A message of protocol buffers, of pairs of a field's number and an int, a str or a message."""
    data = b""
    for number, value in fields:
        if isinstance(value, int):
            data += varint(number << 3) + varint(value)
        else:
            value = value.encode() if isinstance(value, str) else value
            data += varint(number << 3 | 2) + varint(len(value)) + value
    return data


#: Types by their numbers in ONNX.
TYPES = {"float32": 1, "int64": 7, "bool": 9, "float16": 10}


def onnx_file(nodes, inputs, outputs):
    """`nodes`: operator, inputs, output, domain; `inputs` and `outputs`: name and type, each of one dimension of any
    size."""

    def tensor(name, dtype):
        shape = message((1, message((2, "n"))))
        return message((1, name), (2, message((1, message((1, TYPES[dtype]), (2, shape))))))

    def node(operator, given, output, domain=""):
        return message(*((1, name) for name in given), (2, output), (4, operator), (7, domain))

    graph = [*((1, node(*each)) for each in nodes), (2, "graph")]
    graph += [*((11, tensor(*each)) for each in inputs), *((12, tensor(*each)) for each in outputs)]
    domains = {"", *(domain for _, _, _, *domains in nodes for domain in domains)}
    opsets = [(8, message((1, domain), (2, 1 if domain else 17))) for domain in sorted(domains)]
    return message((1, 8), (7, message(*graph)), *opsets)


@unittest.skipUnless(IS_HERE, "OpenVINO is not installed")
class OfAnOnnxFile(unittest.TestCase):
    def adapter(self, nodes, inputs, outputs, **options):
        """The adapter with a file of these nodes."""
        described = [[{"name": name, "dtype": dtype} for name, dtype in each] for each in (inputs, outputs)]
        graph = dict(zip(("inputs", "outputs"), described))
        bundle = types.SimpleNamespace(graph=graph, encoder=None, causal=False, model={"graph": graph, "layers": 0})
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory) / "graph.onnx"
            file.write_bytes(onnx_file(nodes, inputs, outputs))
            return Adapter(bundle, {"precision": "f32", "threads": 1, "options": options}, file)

    def test_arithmetic_is_the_asked_one_or_what_openvino_chooses(self):
        file = [("Add", ["a", "a"], "x")], [("a", "float32")], [("x", "float32")]
        self.assertEqual(self.adapter(*file).in_effect()["kv_cache_precision"], "f32")
        chosen = openvino.Core().get_property("CPU", "INFERENCE_PRECISION_HINT").get_type_name()
        self.assertEqual(self.adapter(*file, arithmetic="default").in_effect()["activations"], chosen)
        with self.assertRaisesRegex(WorkerError, "option arithmetic is 'fast'"):
            self.adapter(*file, arithmetic="fast")

    def test_outputs_are_in_the_file_s_order_and_of_its_types(self):
        adapter = self.adapter(
            [("Not", ["d"], "w"), ("Add", ["c", "c"], "z"), ("Add", ["b", "b"], "y"), ("Add", ["a", "a"], "x")],
            [("a", "float32"), ("b", "int64"), ("c", "float16"), ("d", "bool"), ("unused", "float32")],
            [("x", "float32"), ("y", "int64"), ("z", "float16"), ("w", "bool")],
        )
        self.assertEqual((adapter.in_effect()["precision"], adapter.in_effect()["kv_cache"]), ("f32", "none"))
        earlier = None
        for numbers in ([0.5, 2], [3], []):
            given = [numpy.array(numbers, dtype) for dtype in ("float32", "int64", "float16", "bool")]
            adapter.feed([*zip("abcd", given), ("unused", numpy.zeros(1, numpy.float32))])
            adapter.run_graph()
            outputs = adapter.graph_outputs()
            self.assertEqual([name for name, _ in outputs], ["x", "y", "z", "w"])
            expected = [*(array + array for array in given[:3]), ~given[3]]
            for (_, array), wanted in zip(outputs, expected):
                self.assertEqual((array.dtype, array.tolist()), (wanted.dtype, wanted.tolist()))
            if earlier:
                self.assertEqual(earlier[0][1].tolist(), before, "outputs stay as they were")
            earlier, before = outputs, outputs[0][1].tolist()

    def test_what_has_no_operator_is_refused_with_its_name(self):
        inputs, outputs = [("a", "float32")], [("y", "float32")]
        for node, name in ((("Det", ["a"], "y"), "Det"), (("Odd", ["a"], "y", "com.acme"), "com.acme.Odd")):
            with self.assertRaises(WorkerError) as refused:
                self.adapter([node], inputs, outputs)
            self.assertEqual(refused.exception.kind, "unsupported")
            self.assertRegex(str(refused.exception), f"^unsupported: OpenVINO does not run this file: .*{name}")
            self.assertNotIn("\n", str(refused.exception))

    def test_what_is_wrong_with_a_file_is_said_in_one_line(self):
        said = "Exception from src/core.cpp:84:\nCheck 'false' failed at src/a.cpp:1:\n-- MatMul, as told:\nodd sizes\n"
        error = openvino_onnx.refused(said)
        self.assertEqual(error.kind, "failed")
        self.assertEqual(str(error), "OpenVINO does not run this file: MatMul, as told: odd sizes")
        self.assertIn("src/core.cpp", str(openvino_onnx.refused("Exception from src/core.cpp:84:\n")))

    def test_a_port_is_found_by_its_name_or_else_by_its_place(self):
        one, two = (types.SimpleNamespace(get_names=lambda names=names: names) for names in ({"a", "b"}, {"c"}))
        self.assertEqual(openvino_onnx.ports([one, two], ["c", "b", "a"]), [two, one, one])
        self.assertEqual(openvino_onnx.ports([one, two], ["a", "d"]), [one, two])
        with self.assertRaisesRegex(WorkerError, "OpenVINO has no d"):
            openvino_onnx.ports([one, two], ["a", "b", "d"])


if __name__ == "__main__":
    unittest.main()

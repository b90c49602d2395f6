"""What OpenVINO's graph of an encoder is given and what is read of it, and which weights are refused. It needs OpenVINO and
is left out without; what the graphs compute is compared by conformance.py."""

import importlib.util
import math
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from reference_worker.bundle import WorkerError

IS_HERE = importlib.util.find_spec("openvino") is not None
if IS_HERE:
    import numpy

    from reference_worker import openvino_encoder
    from reference_worker.adapters.openvino import require_weights

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


if __name__ == "__main__":
    unittest.main()

"""Tokens are drawn as the crate `worker` draws them: both read drawn.json."""

import json
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from reference_worker.work.chacha import Stream

try:
    import numpy

    from reference_worker.work.draw import Sampler
except ModuleNotFoundError:
    numpy = None

DRAWN = json.loads((Path(__file__).parent / "drawn.json").read_text())


def logits(vocabulary):
    """Numbers from 0 to 8 that f32 holds exactly, some of them equal."""
    return [((i * 2654435761 & 0xFFFFFFFF) >> 18) / 2048 for i in range(vocabulary)]


class Numbers(unittest.TestCase):
    def test_they_are_those_of_the_workers_in_rust(self):
        for of in DRAWN["uniforms"]:
            stream = Stream(of["seed"], of["stream"])
            self.assertEqual([stream.uniform() for _ in of["numbers"]], of["numbers"])


@unittest.skipUnless(numpy, "numpy is not here")
class Draws(unittest.TestCase):
    def rows(self, vocabulary):
        return numpy.array(logits(vocabulary), numpy.float32).tobytes()

    def test_they_are_those_of_the_workers_in_rust(self):
        for of in DRAWN["draws"]:
            count, row = len(of["tokens"][0]), self.rows(of["vocabulary"])
            sampler = Sampler(of["sampling"], of["vocabulary"], len(of["tokens"]), count)
            for case, tokens in enumerate(of["tokens"]):
                sampler.begin(case)
                self.assertEqual([sampler.draw(row, 1)[0] for _ in range(count)], tokens, of["sampling"])

    def test_a_case_draws_the_same_each_time(self):
        sampler, row = Sampler({"temperature": 1, "seed": 7}, 100, 1, 20), self.rows(100)
        first, again = ((sampler.begin(0), [sampler.draw(row * 2, 2) for _ in range(10)])[1] for _ in range(2))
        self.assertEqual(first, again)
        self.assertGreater(len({token for pair in first for token in pair}), 5)

    def test_what_is_no_number_is_never_drawn(self):
        row = numpy.array([numpy.nan, 1, -numpy.inf, 1, numpy.nan], numpy.float32)
        for more in ({}, {"top_k": 4}, {"top_p": 0.99}):
            sampler = Sampler({"temperature": 9, "seed": 7, **more}, 5, 1, 200)
            sampler.begin(0)
            self.assertEqual({sampler.draw(row.tobytes(), 1)[0] for _ in range(200)}, {1, 3})
        sampler.begin(0)
        nothing = numpy.array([[numpy.nan] * 3, [numpy.nan, numpy.inf, numpy.inf]], numpy.float32)
        self.assertEqual(sampler.draw(nothing.tobytes(), 2), [0, 1])


if __name__ == "__main__":
    unittest.main()

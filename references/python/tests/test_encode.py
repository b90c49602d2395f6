"""Texts to vectors: what a request gives, and what is refused."""

import unittest

from reference_worker import work
from reference_worker.bundle import WorkerError
from reference_worker.slowed import Slowed

CONTEXT = {"vocabulary": 10, "context": 4, "mask_token": None}


class Adapter:
    FRAMEWORK, ENCODES = "fake", True

    def encode(self, texts, types, pooling, normalise):
        self.asked = types, pooling, normalise
        longest = max(map(len, texts))
        return [[float(sum(text))] for text in texts], len(texts) * longest

    def rows(self, vectors):
        return vectors


def job(texts, **more):
    return {"kind": "encode", "cases": [{"texts": texts}], "pooling": "mean", "normalise": True, **more}


class TestEncode(unittest.TestCase):
    def test_a_request_has_one_mark_and_a_vector_for_each_text(self):
        for adapter in (Adapter(), Slowed(Adapter(), 0.1)):
            encoding = work.of(adapter, job([[1, 2, 3], [4]]), CONTEXT)
            sample = encoding.sample(encoding.request(0))
            self.assertEqual(len(sample["marks_ns"]), 1)
            self.assertEqual(sample["output"], {"vectors": {"vectors": [[6.0], [4.0]], "positions": 6}})
            self.assertEqual(adapter.asked, (None, "mean", True))

    def test_what_cannot_be_encoded_is_refused(self):
        for texts, said in (([], "none at all"), ([[]], "empty text"), ([[1] * 5], "4 positions"), ([[10]], "token id 10")):
            with self.assertRaisesRegex(WorkerError, said):
                work.of(Adapter(), job(texts), CONTEXT)
        with self.assertRaisesRegex(WorkerError, "unknown pooling 'sum'"):
            work.of(Adapter(), job([[1]], pooling="sum"), CONTEXT)
        decoder = Adapter()
        decoder.ENCODES = False
        with self.assertRaisesRegex(WorkerError, "fake encodes no texts here"):
            work.of(decoder, job([[1]]), CONTEXT)


if __name__ == "__main__":
    unittest.main()

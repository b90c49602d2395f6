"""Texts to vectors or scores: what a request gives, and what is refused."""

import importlib.util
import unittest

from reference_worker import work
from reference_worker.bundle import WorkerError
from reference_worker.slowed import Slowed

ENCODER = {"token_types": 2, "head": {"of": "tokens", "labels": 2}}
CONTEXT = {"vocabulary": 10, "context": 4, "mask_token": None, "encoder": ENCODER}
EMBED = {"pooling": "mean", "normalise": True}


class Adapter:
    FRAMEWORK, ENCODES = "fake", True

    def encode(self, texts, types, embed):
        self.asked = types, embed
        longest = max(map(len, texts))
        return [[float(sum(text))] for text in texts], len(texts) * longest

    def rows(self, vectors):
        return vectors


def job(texts, **more):
    return {"kind": "encode", "cases": [{"texts": texts}], "task": {"embed": EMBED}, **more}


class TestEncode(unittest.TestCase):
    def test_a_request_has_one_mark_and_a_vector_for_each_text(self):
        for adapter in (Adapter(), Slowed(Adapter(), 0.1)):
            encoding = work.of(adapter, job([[1, 2, 3], [4]]), CONTEXT)
            sample = encoding.sample(encoding.request(0))
            self.assertEqual(len(sample["marks_ns"]), 1)
            self.assertEqual(sample["output"], {"vectors": {"vectors": [[6.0], [4.0]], "positions": 6}})
            self.assertEqual(adapter.asked, (None, EMBED))

    def test_a_request_may_bring_texts_of_its_own(self):
        encoding = work.of(Adapter(), job([[1, 2, 3], [4]]), CONTEXT)
        given = {"texts": [[3, 3, 3], [5]]}
        encoding.check(0, given)
        vectors = encoding.output(encoding.request(0, given))["vectors"]["vectors"]
        self.assertEqual(vectors, [[9.0], [5.0]])
        for other in ({"continue": {}}, {"texts": [[1, 2, 3]]}, {"texts": [[1, 2], [4]]}):
            with self.assertRaisesRegex(WorkerError, "as many as those of its case, and as long"):
                encoding.check(0, other)
        with self.assertRaisesRegex(WorkerError, "token id 10"):
            encoding.check(0, {"texts": [[1, 2, 10], [4]]})

    def test_it_has_no_logits_to_ask_for(self):
        encoding = work.of(Adapter(), job([[1]]), CONTEXT)
        with self.assertRaisesRegex(WorkerError, "only requests that continue prompts have logits to ask for"):
            encoding.logits([1])

    def test_what_is_not_finite_is_told_as_nothing(self):
        encoding = work.of(Adapter(), job([[1]]), CONTEXT)
        request = encoding.request(0)
        encoding.adapter.rows = lambda vectors: [[1.0, float("nan")], [float("-inf"), 2.0]]
        self.assertEqual(encoding.sample(request)["output"]["vectors"]["vectors"], [[1.0, None], [None, 2.0]])

    @unittest.skipUnless(importlib.util.find_spec("numpy"), "there is no numpy here")
    def test_steps_come_behind_the_vectors_of_an_adapter(self):
        adapter = Adapter()
        adapter.encode = lambda texts, types, embed: ([[1.0, 2.0, 3.0, 6.0]], 2)
        ways = ["cls", "mean", "max", "last", "mean_sqrt_len", "weighted_mean"]
        for skipped, expected in (
            (0, [1, 2, 2, 4, 3, 6, 3, 6, 4 / 2**0.5, 8 / 2**0.5, 7 / 3, 14 / 3]), (1, [3, 6] * 6), (2, [0] * 12),
        ):
            steps = [{"pool": {"ways": ways, "skipped": skipped}}]
            encoding = work.of(adapter, job([[1, 2]], steps=steps), {**CONTEXT, "hidden": 2})
            for got, wanted in zip(encoding.output(encoding.request(0))["vectors"]["vectors"][0], expected, strict=True):
                self.assertAlmostEqual(got, wanted, places=6)
        steps = [{"pool": {"ways": ["last"], "skipped": 0}}, "normalise", {"cut": 1}]
        encoding = work.of(adapter, job([[1, 2]], steps=steps), {**CONTEXT, "hidden": 2})
        self.assertAlmostEqual(encoding.output(encoding.request(0))["vectors"]["vectors"][0][0], 5**-0.5, places=6)
        with self.assertRaisesRegex(WorkerError, "'fold' behind a pooling is unknown"):
            encoding = work.of(adapter, job([[1, 2]], steps=[{"fold": 1}]), {**CONTEXT, "hidden": 2})
            encoding.output(encoding.request(0))

    def test_scores_are_asked_of_a_head(self):
        adapter = Adapter()
        encoding = work.of(adapter, job([[1]], task="score"), CONTEXT)
        encoding.request(0)
        self.assertEqual(adapter.asked, (None, None))
        headless = {**CONTEXT, "encoder": {"token_types": 2}}
        with self.assertRaisesRegex(WorkerError, "no head that gives scores"):
            work.of(Adapter(), job([[1]], task="score"), headless)
        with self.assertRaisesRegex(WorkerError, "unknown task 'rank'"):
            work.of(Adapter(), job([[1]], task="rank"), CONTEXT)

    def test_what_cannot_be_encoded_is_refused(self):
        for texts, said in (([], "none at all"), ([[]], "empty text"), ([[1] * 5], "4 positions"), ([[10]], "token id 10")):
            with self.assertRaisesRegex(WorkerError, said):
                work.of(Adapter(), job(texts), CONTEXT)
        for types, said in (([[0]], "each token of a text has a type"), ([[0, 2]], "token type 2 is not one of the model's 2")):
            with self.assertRaisesRegex(WorkerError, said):
                work.of(Adapter(), job(None, cases=[{"texts": [[1, 1]], "types": types}]), CONTEXT)
        with self.assertRaisesRegex(WorkerError, "unknown pooling 'sum'"):
            work.of(Adapter(), job([[1]], task={"embed": {**EMBED, "pooling": "sum"}}), CONTEXT)
        decoder = Adapter()
        decoder.ENCODES = False
        with self.assertRaisesRegex(WorkerError, "fake encodes no texts here"):
            work.of(decoder, job([[1]]), CONTEXT)

    def test_a_model_encodes_or_continues(self):
        with self.assertRaisesRegex(WorkerError, "continues texts and encodes none"):
            work.of(Adapter(), job([[1]]), {**CONTEXT, "encoder": None})
        with self.assertRaisesRegex(WorkerError, "encodes texts and continues none"):
            work.of(Adapter(), {"kind": "generate"}, CONTEXT)


if __name__ == "__main__":
    unittest.main()

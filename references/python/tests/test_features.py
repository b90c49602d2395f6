"""Whose models are refused, and why, with the standard library alone."""

import sys
import types
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from reference_worker import features
from reference_worker.bundle import WorkerError


class Adapter:
    FRAMEWORK, HEARS = "fake", False
    FEATURES, ENCODER_FEATURES = ("norms_behind",), ("encoder", "relative_positions")

    def begin(self, batch, capacity):
        self.begun = batch, capacity


def bundle(window=None, encoder=None, **features):
    if window:
        features["window"] = "a sliding window of attention"
    return types.SimpleNamespace(features=features, window=window, encoder=encoder)


class Features(unittest.TestCase):
    def test_what_is_not_computed_is_refused_in_words(self):
        features.check_features(bundle(norms_behind="norms behind its blocks"), Adapter)
        with self.assertRaises(WorkerError) as refused:
            features.check_features(bundle(logits_cap="soft-capped logits"), Adapter)
        self.assertEqual(refused.exception.kind, "unsupported")
        self.assertIn("the model has soft-capped logits, which fake does not compute here", str(refused.exception))

    def test_an_encoder_may_have_what_a_decoder_may_not(self):
        features.check_features(bundle(encoder={"token_types": 2}, relative_positions="distances"), Adapter)
        for more in ({"relative_positions": "distances"}, {"norms_behind": "norms", "encoder": {"token_types": 2}}):
            with self.assertRaisesRegex(WorkerError, "which fake does not compute here"):
                features.check_features(bundle(**more), Adapter)

    def test_a_framework_with_models_of_its_own_is_left_to_them(self):
        own = types.SimpleNamespace(FRAMEWORK="own", FEATURES=None, HEARS=False)
        features.check_features(bundle(logits_cap="soft-capped logits"), own)

    def test_audio_is_for_what_listens_whoever_made_the_model(self):
        for adapter in (Adapter, types.SimpleNamespace(FRAMEWORK="fake", FEATURES=None, HEARS=False)):
            with self.assertRaisesRegex(WorkerError, "has an encoder of audio, which fake does not compute here"):
                features.check_features(bundle(audio="an encoder of audio"), adapter)
            hears = types.SimpleNamespace(FRAMEWORK="fake", FEATURES=adapter.FEATURES, HEARS=True)
            features.check_features(bundle(audio="an encoder of audio"), hears)

    def test_a_window_is_kept_within(self):
        adapter = Adapter()
        features.check_features(bundle(window=16), Adapter)
        features.keep_within_window(bundle(window=16), adapter)
        adapter.begin(1, 16)
        self.assertEqual(adapter.begun, (1, 16))
        with self.assertRaises(WorkerError) as refused:
            adapter.begin(1, 17)
        self.assertIn("17 tokens are more than the model's sliding window of 16", str(refused.exception))


if __name__ == "__main__":
    unittest.main()

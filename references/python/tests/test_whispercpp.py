"""Names and sizes of whisper.cpp's files. It needs numpy and is left out without; what is computed is compared by
conformance.py."""

import io
import struct
import sys
import types
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parent.parent))

try:
    import numpy

    from reference_worker.adapters import whispercpp
    from reference_worker.bundle import WorkerError
except ImportError:
    numpy = None


def bundle(**changes):
    mlp = {"mlp": {"width": 8}}
    encoder = {"heads": 1, "layers": [{"feed": mlp}], **changes.pop("encoder", {})}
    model = {
        "vocab_size": 5, "hidden_size": 2, "heads": 1, "layers": [{"feed": mlp}], "max_positions": 4,
        "tied_embeddings": True, "audio_encoder": encoder, **changes,
    }
    return types.SimpleNamespace(model=model, audio={"bands": 3, "frames": 6, "layers": 1, "heads": 1})


class Held(dict):
    names = property(list)
    tensor = dict.get


@unittest.skipUnless(numpy, "it needs numpy")
class Files(unittest.TestCase):
    def written(self, **tensors):
        file = io.BytesIO()
        file.close = lambda: None
        with mock.patch("builtins.open", lambda *_: file):
            whispercpp.write(bundle(), Held(tensors), "a file")
        return file.getvalue()

    def test_tensors_have_their_names_there_and_small_ones_are_wide(self):
        names = {
            "model.decoder.layers.0.self_attn_layer_norm.weight": ("decoder.blocks.0.attn_ln.weight", 1, 0),
            "model.decoder.layers.0.encoder_attn_layer_norm.bias": ("decoder.blocks.0.cross_attn_ln.bias", 1, 0),
            "model.decoder.layers.0.encoder_attn.out_proj.weight": ("decoder.blocks.0.cross_attn.out.weight", 2, 1),
            "model.encoder.layers.0.self_attn.k_proj.weight": ("encoder.blocks.0.attn.key.weight", 2, 1),
            "model.encoder.layers.0.final_layer_norm.weight": ("encoder.blocks.0.mlp_ln.weight", 1, 0),
            "model.encoder.layers.0.fc2.weight": ("encoder.blocks.0.mlp.2.weight", 2, 1),
            "model.encoder.embed_positions.weight": ("encoder.positional_embedding", 2, 0),
            "model.decoder.embed_tokens.weight": ("decoder.token_embedding.weight", 2, 1),
            "model.encoder.layer_norm.bias": ("encoder.ln_post.bias", 1, 0),
            "model.decoder.layer_norm.bias": ("decoder.ln.bias", 1, 0),
        }
        for tensor, (name, dimensions, half) in names.items():
            values = numpy.ones((2,) * dimensions, numpy.float16)
            found = self.written(**{tensor: values})
            sizes, kind = struct.pack(f"<{dimensions}i", *(2,) * dimensions), numpy.float16 if half else numpy.float32
            expected = struct.pack("<3i", dimensions, len(name), half) + sizes + name.encode()
            self.assertTrue(found.endswith(expected + values.astype(kind).tobytes()), name)
        bias = self.written(**{"model.encoder.conv1.bias": numpy.ones(2, numpy.float16)})
        self.assertIn(struct.pack("<5i", 2, 18, 0, 1, 2) + b"encoder.conv1.bias", bias)

    def test_what_it_computes_otherwise_is_refused(self):
        with self.assertRaisesRegex(WorkerError, "no biases of keys"):
            self.written(**{"model.encoder.layers.0.self_attn.k_proj.bias": numpy.ones(2, numpy.float16)})
        narrow = [{"feed": {"mlp": {"width": 6}}}]
        for changes in ({"heads": 2}, {"tied_embeddings": False}, {"layers": narrow}, {"encoder": {"layers": narrow}}):
            with self.assertRaisesRegex(WorkerError, "four times as wide"):
                whispercpp.write(bundle(**changes), Held(), "a file")


if __name__ == "__main__":
    unittest.main()

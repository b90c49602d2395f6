"""A bundle as a directory that Hugging Face's `from_pretrained` reads: links to the bundle's own files, and its
configuration."""

import json
import struct

from .bundle import derive, references_directory
from .weights import Weights

# Model types that transformers has under another name.
BODIES = {"Dream": "qwen2", **dict.fromkeys(("aquila", "falcon3", "skywork", "xverse"), "llama")}


def weights_file(bundle, precision):
    """The bundle's own file. gpt2's is derived from it once: its linear layers are `[in, out]` as published (`Conv1D`),
    and `[out, in]` in a bundle."""
    own = bundle.weights_path(precision)
    if bundle.config["model_type"] != "gpt2":
        return own
    directory = references_directory() / "derived" / f"huggingface-conv1d-{bundle.address(precision)}"

    def make(staging):
        turn(own, linear_weights(bundle.model), staging / "model.safetensors")
        return {
            "from": own.name, "from_sha256": bundle.verify(own.name), "same_values": True,
            "by": "linear layers as [in, out], as Conv1D of transformers has them",
        }

    return derive(directory, "model.safetensors", make)


def linear_weights(model):
    parts = ("qkv", "output", "gate_up", "down")
    return {name for layer in model["tensors"]["layers"] for part in parts for name in layer[part]["weights"]}


def turn(source, turned, target):
    """Writes the tensors of a safetensors file to another, in the same order, those of the names transposed."""
    weights = Weights(source)
    arrays = {name: weights.tensor(name) for name in weights.names}
    arrays = {name: array.T if name in turned else array for name, array in arrays.items()}
    header, end = {"__metadata__": weights.metadata}, 0
    for name, array in arrays.items():
        offsets = [end, end := end + array.nbytes]
        header[name] = {"dtype": weights.dtype(name), "shape": array.shape, "data_offsets": offsets}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(target, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for array in arrays.values():
            file.write(array.tobytes())


def checkpoint(bundle, weights_file, precision):
    """The directory, with the one field of a configuration that exporters look for beside. What came with code of its
    own is named as the library's model that it is."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as classes

    directory = references_directory() / "derived" / f"huggingface-{bundle.address(precision)}"
    directory.mkdir(parents=True, exist_ok=True)
    kind = bundle.config["model_type"]
    body = BODIES.get(kind, kind)
    told = {"architectures": [classes.get(body)], **bundle.config}
    if body != kind:
        told |= {"model_type": body, "architectures": [classes[body]]}
        told.pop("auto_map", None)
    if not bundle.encoder:
        # No text is padded. Some classes have a default, which may be outside the vocabulary.
        told.setdefault("pad_token_id", None)
    (directory / "config.json").write_text(json.dumps(told))
    files = {"model.safetensors": weights_file, "tokenizer.json": bundle.directory / "tokenizer.json"}
    for name, target in files.items():
        link = directory / name
        # The bundle may have been moved since.
        link.unlink(missing_ok=True)
        if target.is_file():
            link.symlink_to(target.resolve())
    return directory

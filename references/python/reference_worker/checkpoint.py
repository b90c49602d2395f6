"""A bundle as a directory that Hugging Face's `from_pretrained` reads: links to the bundle's own files, and its
configuration."""

import json
import struct

import numpy

from .bundle import derive, references_directory
from .weights import Weights

# Model types that transformers has under another name.
BODIES = {"Dream": "qwen2", **dict.fromkeys(("aquila", "falcon3", "skywork", "xverse"), "llama")}


def weights_file(bundle, precision):
    """The bundle's own file, or one derived from it once, where a bundle has tensors otherwise than transformers."""
    own, published = bundle.weights_path(precision), PUBLISHED.get(bundle.config["model_type"])
    if published is None:
        return own
    change, form, words = published
    directory = references_directory() / "derived" / f"huggingface-{form}-{bundle.address(precision)}"

    def make(staging):
        write(own, lambda arrays: change(bundle.model, arrays), staging / "model.safetensors")
        return {"from": own.name, "from_sha256": bundle.verify(own.name), "same_values": True, "by": words}

    return derive(directory, "model.safetensors", make)


def write(source, change, target):
    """Writes what `change` makes of the tensors of a safetensors file, by name, to another."""
    weights = Weights(source)
    arrays = change({name: weights.tensor(name) for name in weights.names})
    header, end = {"__metadata__": weights.metadata}, 0
    for name, array in arrays.items():
        offsets = [end, end := end + array.nbytes]
        header[name] = {"dtype": weights.dtype(weights.names[0]), "shape": array.shape, "data_offsets": offsets}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(target, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for array in arrays.values():
            file.write(array.tobytes())


def turned(model, arrays):
    parts = ("qkv", "output", "gate_up", "down")
    linear = {name for layer in model["tensors"]["layers"] for part in parts for name in layer[part]["weights"]}
    return {name: array.T if name in linear else array for name, array in arrays.items()}


def by_head(model, arrays):
    """`[queries, keys, values]` of all heads as those of one head after another."""
    def turn(array):
        return array.reshape(3, model["heads"], model["head_dim"], -1).swapaxes(0, 1).reshape(array.shape)

    return {name: turn(array) if "query_key_value" in name else array for name, array in arrays.items()}


def in_pairs(model, arrays):
    """The halves of each head that are rotated together as neighbours."""
    size = model["head_dim"]
    rotated = (model.get("form") or {}).get("rotated", size)

    def turn(array):
        heads = array.reshape(-1, size, *array.shape[1:]).copy()
        halves = heads[:, :rotated].reshape(-1, 2, rotated // 2, *array.shape[1:])
        heads[:, :rotated] = halves.swapaxes(1, 2).reshape(-1, rotated, *array.shape[1:])
        return heads.reshape(array.shape)

    return {name: turn(array) if "q_proj" in name or "k_proj" in name else array for name, array in arrays.items()}


def together(model, arrays):
    """The experts of a layer in one tensor, `[experts, in, out]`, with gate and up in turns."""
    stacked = {}
    for index, layer in enumerate(model["tensors"]["layers"]):
        at, each = f"model.layers.{index}.mlp.experts", layer["experts"]["each"]
        for kind, end in (("weights", ""), ("biases", "_bias")):
            gates, ups = ([arrays.pop(gate_up[kind][half]) for gate_up, _ in each] for half in (0, 1))
            downs = [arrays.pop(down[kind][0]) for _, down in each]
            gate_up = numpy.stack([numpy.stack(gates), numpy.stack(ups)], axis=2)
            gate_up = gate_up.reshape(len(each), -1, *gates[0].shape[1:])
            both = ((f"{at}.gate_up_proj{end}", gate_up), (f"{at}.down_proj{end}", numpy.stack(downs)))
            stacked |= {name: array.swapaxes(1, 2) if kind == "weights" else array for name, array in both}
    return arrays | stacked


# By type of model: how a file for transformers is made, its name, and what is said of it.
PAIRS = (in_pairs, "pairs", "heads with the numbers side by side that are rotated together")
PUBLISHED = {
    "gpt2": (turned, "conv1d", "linear layers as [in, out], as Conv1D of transformers has them"),
    "gpt_neox": (by_head, "by-head", "queries, keys and values of one head after another"),
    "gpt_oss": (together, "experts", "the experts of a layer in one tensor, [experts, in, out], gate and up in turns"),
    **dict.fromkeys(("cohere", "glm", "glm4"), PAIRS),
}


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

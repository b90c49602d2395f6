"""A bundle's tensors as numpy arrays over the mapped file, for adapters that build the model themselves.

numpy has no bfloat16: such tensors come as uint16, the bits as they lie.
"""

import json
import mmap
import struct

import numpy

from .bundle import bad_input

ELEMENTS = {
    "F32": numpy.float32, "F16": numpy.float16, "BF16": numpy.uint16, "I8": numpy.int8, "U8": numpy.uint8,
    "I32": numpy.int32, "I64": numpy.int64,
}


class Weights:
    """The tensors of a safetensors file; nothing is copied."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        try:
            (length,) = struct.unpack_from("<Q", self._map)
            self._header = json.loads(self._map[8 : 8 + length])
        except (struct.error, ValueError) as error:
            raise bad_input(f"{path} is not a safetensors file: {error}") from None
        self._path, self._data = path, 8 + length

    @property
    def metadata(self):
        """What the file says of itself: strings by name."""
        return self._header.get("__metadata__", {})

    @property
    def names(self):
        """Of all tensors, in the order of the file's data."""
        named = [name for name in self._header if name != "__metadata__"]
        return sorted(named, key=lambda name: self._header[name]["data_offsets"])

    def dtype(self, name):
        """As the file calls it."""
        return self._header[name]["dtype"]

    def holds(self, name):
        return name in self._header

    def tensor(self, name):
        """By its name in the file, in its own shape."""
        return self._rows([name])

    def stacked(self, names):
        """Tensors that lie side by side, as one along their first dimension (`q_proj`, `k_proj`, `v_proj`)."""
        return self._rows(names)

    def _rows(self, names):
        entries = [self._header.get(name) for name in names]
        if None in entries:
            raise bad_input(f"{self._path} has no tensor {names[entries.index(None)]}")
        for before, after in zip(entries, entries[1:]):
            if before["data_offsets"][1] != after["data_offsets"][0] or before["dtype"] != after["dtype"]:
                raise bad_input(f"{self._path}: {', '.join(names)} do not lie side by side; prepare the model again")
        start, end = entries[0]["data_offsets"][0], entries[-1]["data_offsets"][1]
        element = numpy.dtype(ELEMENTS[entries[0]["dtype"]])
        shape = [sum(entry["shape"][0] for entry in entries), *entries[0]["shape"][1:]]
        count = (end - start) // element.itemsize
        return numpy.frombuffer(self._map, element, count, self._data + start).reshape(shape)

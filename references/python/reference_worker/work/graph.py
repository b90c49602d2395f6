"""An ONNX file: each request is a run of it, from inputs that lie ready to outputs in host memory, or a sequence of runs
of which each is fed with state of the one before.

numpy is imported where it is needed, since workers without it refuse such work in words.
"""

import base64
from math import prod
from pathlib import Path

from ..bundle import bad_input, unsupported
from . import Request, Workload

MASK = (1 << 64) - 1


class Running(Workload):
    """Runs a graph. A request's marks: the end of each run."""

    def __init__(self, adapter, work, context, is_fed):
        super().__init__(adapter, {**work, "new_tokens": 0}, context)
        if not adapter.GRAPHS:
            raise unsupported(f"{adapter.FRAMEWORK} runs no ONNX files here")
        self._types = [(given["name"], given["dtype"]) for given in context["graph"]["inputs"]]
        names = [name for name, _ in self._types]
        if any([feed["name"] for feed in case["inputs"]] != names for case in self.cases):
            raise bad_input("a run has a tensor for each input of the graph, in its order")
        self.marks = max(case.get("sets", 1) for case in self.cases)
        self._coming, self._done = [], []

    def check(self, case, given):
        """Refuses what a request of this case cannot be given."""
        seed = given.get("seed")
        if len(given) != 1 or type(seed) is not int or not 0 <= seed <= MASK:
            raise bad_input("a request that runs a graph may be given a seed alone")

    def begin(self, case, given=None):
        asked, seed = self.cases[case], (given or self.cases[case])["seed"]
        self._coming = sets(asked, self._types, seed, given is not None or asked.get("rotated", False))
        self._done = []
        self.adapter.feed(self._coming.pop(0))
        request = Request(case)
        request.begin()
        self.adapter.run_graph()
        request.mark()
        return request

    def advance(self, request, marks, given=None):
        """Runs what follows in a sequence. Handing its state over is part of a run."""
        state = self.cases[request.case].get("state", [])
        request.resume()
        for _ in range(min(marks, len(self._coming))):
            # Copies: a runtime may write the next run's over them.
            outputs = [(name, array.copy()) for name, array in self.adapter.graph_outputs()]
            # What is fed to the next run is seen in that one's outputs.
            fed = {pair["output"] for pair in state}
            self._done += [(name, array) for name, array in outputs if name not in fed]
            values, given = dict(outputs), dict(self._coming.pop(0))
            for pair in state:
                given[pair["input"]] = values[pair["output"]]
            self.adapter.feed(list(given.items()))
            self.adapter.run_graph()
            request.mark()

    def output(self, request):
        outputs = self._done + self.adapter.graph_outputs()
        return {"tensors": [said(name, array) for name, array in outputs]}

    def along(self, outputs):
        """The cases as they are: they follow no outputs."""
        return self.cases

    def parity(self, task):
        raise bad_input("requests that run a graph have no logits")


def sets(case, types, seed, rotated):
    """Names and arrays of each run of a case. `types`: name and type of each input. What is drawn follows from `seed`."""
    runs = case.get("sets", 1)
    arrays = [[] for _ in range(runs)]
    for place, (feed, (name, dtype)) in enumerate(zip(case["inputs"], types)):
        shape, values = feed["shape"], feed["values"]
        elements = prod(shape)
        whole = None
        if "file" in values:
            whole = read(values["file"], dtype, (elements, runs))
            if rotated and len(whole) > elements:
                whole = turned(whole, of_place(seed, place))
        for run in range(runs):
            if whole is None:
                array = drawn(dtype, elements, values["drawn"], of_place(of_set(seed, run), place))
            else:
                start = run * elements if len(whole) > elements else 0
                array = whole[start : start + elements]
                if rotated and len(whole) == elements:
                    array = turned(array, of_place(of_set(seed, run), place))
            arrays[run].append((name, array.reshape(shape)))
    return arrays


def said(name, array):
    """A tensor as the protocol has it."""
    data = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    text = base64.b64encode(data).decode()
    return {"name": name, "dtype": array.dtype.name, "shape": list(array.shape), "data": text}


# Numbers from which on a file's are rotated: fewer are lengths and scales, whose places have a meaning.
ROTATED = 1024


def turned(array, seed):
    """The numbers of a file, rotated by the seed if there are enough of them."""
    import numpy

    return numpy.roll(array, -(seed % len(array))) if len(array) >= ROTATED else array


def read(path, dtype, size):
    """The numbers of a file that has nothing else, of one run or of each: `size` is elements of a run, and runs."""
    import numpy

    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise bad_input(f"{path}: {error}") from None
    dtype = numpy.dtype(dtype)
    elements, runs = size
    if len(data) not in (elements * dtype.itemsize, runs * elements * dtype.itemsize):
        raise bad_input(f"{path} has {len(data)} bytes, not {elements * dtype.itemsize}")
    if dtype.kind == "b":
        # A file may hold others than 0 and 1, which no framework has to expect.
        return numpy.frombuffer(data, numpy.uint8) != 0
    # A copy, since bytes cannot be written to.
    return numpy.frombuffer(data, dtype.newbyteorder("<")).astype(dtype)


def of_set(seed, run):
    """What the values of this run follow from: those of the first from the seed itself."""
    return (seed + run * 0xA0761D6478BD642F) & MASK


def of_place(seed, place):
    """What the values of the tensor at this place follow from."""
    return (seed + place * 0xD1B54A32D192ED03) & MASK


def drawn(dtype, elements, between, seed):
    """Values from `low` to below `high` of `between`: as docs/reference/protocol.md has them, in every worker the same.
    The generator is SplitMix64 (Steele, Lea and Flood 2014), which gives any place of its sequence at once."""
    import numpy

    # Whole numbers of an array wrap.
    bits = numpy.arange(1, elements + 1, dtype=numpy.uint64)
    bits *= 0x9E3779B97F4A7C15
    bits += seed
    bits ^= bits >> 30
    bits *= 0xBF58476D1CE4E5B9
    bits ^= bits >> 27
    bits *= 0x94D049BB133111EB
    bits ^= bits >> 31
    # 24 bits: exact in f32, too.
    share = (bits >> 40).astype(numpy.float64) / (1 << 24)
    low, high = float(between["low"]), float(between["high"])
    with numpy.errstate(over="ignore", invalid="ignore"):
        return in_type(low + share * (high - low), numpy.dtype(dtype))


def in_type(values, dtype):
    """Numbers in another type. Whole ones are the next below, and end at the type's least and largest."""
    import numpy

    if dtype.kind == "f":
        # By way of f32, as processors convert to f16.
        return (values.astype(numpy.float32) if dtype.itemsize == 2 else values).astype(dtype)
    whole = numpy.floor(values)
    if dtype.kind == "b":
        return whole != 0
    ends = numpy.iinfo(dtype)
    below, above = whole <= float(ends.min), whole >= float(ends.max)
    numbers = numpy.where(below | above | numpy.isnan(whole), 0, whole).astype(dtype)
    numbers[below], numbers[above] = ends.min, ends.max
    return numbers

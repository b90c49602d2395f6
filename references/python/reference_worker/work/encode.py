"""Texts to vectors, or to scores: each request encodes one batch."""

from math import erf, isfinite

from ..bundle import bad_input, unsupported
from . import Request, Workload

POOLINGS = ("cls", "mean", "max", "last", "each")
# What follows the pooling, of a bundle that has any.
MODULES = "modules.safetensors"


class Encoding(Workload):
    """Encodes batches of texts. A request's only mark: the end."""

    def __init__(self, adapter, work, context, is_fed):
        super().__init__(adapter, {**work, "new_tokens": 0}, context)
        if not adapter.ENCODES:
            raise unsupported(f"{adapter.FRAMEWORK} encodes no texts here")
        self._embed, self._context = embedding(work["task"], context), context
        self._steps = Steps(work["steps"], context) if work.get("steps") else None
        for case in self.cases:
            check(case, context)
        self.marks = 1

    def check(self, case, given):
        """Refuses what a request of this case cannot be given."""
        batch, texts = self.cases[case], given.get("texts") or []
        if [len(text) for text in texts] != [len(text) for text in batch["texts"]]:
            raise bad_input("a turn's texts need to be as many as those of its case, and as long")
        check({**batch, "texts": texts}, self._context)

    def begin(self, case, given=None):
        batch = self.cases[case]
        texts = (given or batch)["texts"]
        request = Request(case)
        request.begin()
        self._vectors, self._positions = self.adapter.encode(texts, batch.get("types") or None, self._embed)
        request.mark()
        return request

    def advance(self, request, marks, given=None):
        """There is nothing behind the only mark."""

    def output(self, request):
        rows = self.adapter.rows(self._vectors)
        if self._steps:
            rows = [self._steps.applied(row) for row in rows]
        # JSON has no word for what is not finite.
        said = [[number if isfinite(number) else None for number in row] for row in rows]
        return {"vectors": {"vectors": said, "positions": self._positions}}

    def parity(self, task):
        raise bad_input("requests that encode texts have no logits")


def embedding(task, context):
    """How a vector comes from those of a text's tokens; None where the model's head gives scores."""
    if task == "score":
        if not context["encoder"].get("head"):
            raise bad_input("the model has no head that gives scores")
        return None
    if not isinstance(task, dict) or "embed" not in task:
        raise bad_input(f"unknown task {task!r} of texts; there are embed, score")
    pooling = task["embed"]["pooling"]
    if pooling not in POOLINGS:
        raise bad_input(f"unknown pooling {pooling!r}; there are {', '.join(POOLINGS)}")
    return task["embed"]


class Steps:
    """The steps from an adapter's vectors to the model's, untimed: docs/reference/protocol.md has what each computes."""

    def __init__(self, steps, context):
        self._steps, self._hidden, self._weights = steps, context["hidden"], None
        if any(isinstance(step, dict) and {"dense", "layer_norm"} & step.keys() for step in steps):
            from ..weights import Weights

            self._weights = Weights(context["directory"] / MODULES)

    def applied(self, row):
        import numpy

        vector = numpy.array(row, numpy.float32)
        for step in self._steps:
            if step == "normalise":
                vector = vector / max(float(numpy.linalg.norm(vector)), 1e-12)
                continue
            ((kind, given),) = step.items() if isinstance(step, dict) else ((step, None),)
            if kind == "pool":
                rows = vector.reshape(-1, self._hidden)
                vector = numpy.concatenate([pooled(rows, way, given["skipped"]) for way in given["ways"]])
            elif kind == "dense":
                vector = self._dense(given, vector)
            elif kind == "layer_norm":
                weight, bias = (self._weights.tensor(f"{given['tensors']}.norm.{name}") for name in ("weight", "bias"))
                vector = (vector - vector.mean()) / numpy.sqrt(vector.var() + 1e-5) * weight + bias
            elif kind == "cut":
                vector = vector[:given]
            else:
                raise unsupported(f"the step {kind!r} behind a pooling is unknown to this worker")
        return vector.tolist()

    def _dense(self, given, vector):
        tensor = lambda name: self._weights.tensor(f"{given['tensors']}.{name}")
        found = tensor("linear.weight") @ vector
        if given["bias"]:
            found = found + tensor("linear.bias")
        found = activated(found, given["activation"])
        if given["residual"] == "none":
            return found
        return found + (vector if given["residual"] == "itself" else tensor("residual.weight") @ vector)


def pooled(rows, way, skipped):
    """The vector of a text from those of its tokens behind the first few."""
    import numpy

    kept = rows[skipped:]
    if not len(kept):
        return numpy.zeros(rows.shape[1], numpy.float32)
    if way == "weighted_mean":
        places = numpy.arange(skipped + 1, len(rows) + 1, dtype=numpy.float32)
        return places @ kept / places.sum()
    ways = {"cls": lambda: kept[0], "last": lambda: kept[-1], "max": lambda: kept.max(axis=0), "mean": lambda: kept.mean(axis=0)}
    ways["mean_sqrt_len"] = lambda: kept.sum(axis=0) / numpy.sqrt(len(kept))
    if way not in ways:
        raise unsupported(f"pooling by {way!r} is unknown to this worker")
    return ways[way]()


def activated(x, activation):
    import numpy

    ways = {
        "identity": lambda: x, "tanh": lambda: numpy.tanh(x), "relu": lambda: numpy.maximum(x, 0),
        "gelu": lambda: numpy.array([0.5 * a * (1 + erf(a / 2**0.5)) for a in x.tolist()], numpy.float32),
        "sigmoid": lambda: 1 / (1 + numpy.exp(-x)), "silu": lambda: x / (1 + numpy.exp(-x)),
    }
    if activation not in ways:
        raise unsupported(f"the activation {activation!r} is unknown to this worker")
    return ways[activation]()


def check(case, context):
    """Texts that this model can encode."""
    texts, types = case["texts"], case.get("types") or []
    if not texts or not all(texts):
        raise bad_input("there is an empty text, or none at all")
    longest = max(map(len, texts))
    if longest > context["context"]:
        raise bad_input(f"a text of {longest} tokens is longer than the model's {context['context']} positions")
    if types and [len(row) for row in types] != [len(row) for row in texts]:
        raise bad_input("each token of a text has a type, or none has")
    outside = [token for text in texts for token in text if not 0 <= token < context["vocabulary"]]
    if outside:
        raise bad_input(f"token id {outside[0]} is outside the vocabulary of {context['vocabulary']} tokens")
    kinds = max(context["encoder"]["token_types"], 1)
    unknown = [kind for row in types for kind in row if not 0 <= kind < kinds]
    if unknown:
        raise bad_input(f"token type {unknown[0]} is not one of the model's {kinds}")

"""Texts to vectors, or to scores: each request encodes one batch."""

from math import isfinite

from ..bundle import bad_input, unsupported
from . import Request, Workload

POOLINGS = ("cls", "mean", "max", "last")


class Encoding(Workload):
    """Encodes batches of texts. A request's only mark: the end."""

    def __init__(self, adapter, work, context, is_fed):
        super().__init__(adapter, {**work, "new_tokens": 0}, context)
        if not adapter.ENCODES:
            raise unsupported(f"{adapter.FRAMEWORK} encodes no texts here")
        self._embed, self._context = embedding(work["task"], context), context
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

    def advance(self, request, marks):
        """There is nothing behind the only mark."""

    def output(self, request):
        # JSON has no word for what is not finite.
        said = [[number if isfinite(number) else None for number in row] for row in self.adapter.rows(self._vectors)]
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

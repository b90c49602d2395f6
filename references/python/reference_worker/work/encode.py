"""Texts to vectors: each request encodes one batch."""

from ..bundle import bad_input, unsupported
from . import Request, Workload

POOLINGS = ("cls", "mean", "max", "last")


class Encoding(Workload):
    """Encodes batches of texts. A request's only mark: the end."""

    def __init__(self, adapter, work, context, is_fed):
        super().__init__(adapter, {**work, "new_tokens": 0}, context)
        if not adapter.ENCODES:
            raise unsupported(f"{adapter.FRAMEWORK} encodes no texts here")
        if work["pooling"] not in POOLINGS:
            raise bad_input(f"unknown pooling {work['pooling']!r}; there are {', '.join(POOLINGS)}")
        for case in self.cases:
            check(case, context)
        self._how = work["pooling"], work["normalise"]
        self.marks = 1

    def check(self, case, given):
        """Refuses what a request of this case cannot be given."""
        raise bad_input("a request that encodes texts is given those of its case: leave `input` out")

    def begin(self, case, given=None):
        batch = self.cases[case]
        request = Request(case)
        request.begin()
        self._vectors, self._positions = self.adapter.encode(batch["texts"], batch.get("types") or None, *self._how)
        request.mark()
        return request

    def advance(self, request, marks):
        """There is nothing behind the only mark."""

    def output(self, request):
        return {"vectors": {"vectors": self.adapter.rows(self._vectors), "positions": self._positions}}

    def parity(self, task):
        raise bad_input("requests that encode texts have no logits")


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

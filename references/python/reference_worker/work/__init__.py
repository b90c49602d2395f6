"""The timed part of each kind of work, one file each. Turns, warm-up and clock depend on `Workload` alone.

Between the first and the last mark of a request, or of a slice of one, there is no I/O and no logging.
"""

from .. import clock
from ..bundle import bad_input


def of(adapter, work, context, is_fed=True):
    """The workload of a job's `work`. `is_fed`: whether requests and parity need what cases have for them."""
    # Imported here, since both build on this module.
    from .denoise import Denoising
    from .encode import Encoding
    from .generate import Generating
    from .graph import Running

    kinds = {"generate": Generating, "denoise": Denoising, "encode": Encoding, "graph": Running}
    if work["kind"] not in kinds:
        raise bad_input(f"unknown kind of work {work['kind']!r}; there are {', '.join(kinds)}")
    if context.get("graph") and work["kind"] != "graph":
        without = "encodes no texts" if work["kind"] == "encode" else "continues no tokens"
        raise bad_input(f"the model is an ONNX file and {without}")
    if not context.get("graph") and work["kind"] == "graph":
        raise bad_input("the model is no ONNX file")
    if context["encoder"] and work["kind"] != "encode":
        raise bad_input("the model encodes texts and continues none")
    if not context["encoder"] and work["kind"] == "encode":
        raise bad_input("the model continues texts and encodes none")
    return kinds[work["kind"]](adapter, work, context, is_fed)


class Workload:
    """What a kind of work computes. One request is under way at a time.

    A kind defines `marks`, the number of a whole request, and `begin`, `advance`, `output` and `parity`.
    """

    def __init__(self, adapter, work, context):
        self.adapter, self.cases, self.new_tokens = adapter, work["cases"], work["new_tokens"]
        self.vocabulary = context["vocabulary"]

    def check_slice(self, case, given, request, marks):
        """Refuses what a slice cannot be given. `request` goes on by so many `marks`; None if the slice is its first."""
        if request is not None:
            raise bad_input("only the first slice of such a request may be given an input")
        self.check(case, given)

    def logits(self, tokens):
        """Logits `[batch][token]` of these tokens in the last step, which has computed them. Not timed."""
        raise bad_input("only requests that continue prompts have logits to ask for")

    def compiled(self):
        return self.adapter.compiled()

    def prepare(self, case):
        """Computes what a case has before its request, which comes next. It is no part of that request."""

    def request(self, case, given=None, marks=None):
        """A request, prepared, up to so many marks or whole."""
        request = self.begin(case, given)
        marks = self.marks if marks is None else marks
        if marks > len(request.marks):
            self.advance(request, marks - len(request.marks))
        return request

    def sample(self, request):
        """What a request took and gave."""
        heard = {} if request.heard is None else {"heard_ns": request.heard}
        return {"case": request.case, "marks_ns": request.marks, **heard, "output": self.output(request)}

    def lead_in(self, case, marks):
        """The beginning of a request up to so many marks, untimed."""
        if marks > 0:
            self.prepare(case)
            self.request(case, marks=min(marks, self.marks))

    def iteration(self, index, before):
        """One pass over all cases. `before`: samples of the first cases, which have been computed already."""
        cases = list(before)
        for case in range(len(cases), len(self.cases)):
            self.prepare(case)
            cases.append(self.sample(self.request(case)))
        return {"index": index, "cases": cases}


class Request:
    """A request between two of its marks."""

    def __init__(self, case):
        self.case, self.marks = case, []
        # When its audio was encoded, if it has any.
        self.heard = None
        self.start = self._origin = 0

    def begin(self):
        self.start = self._origin = clock.now_ns()

    def resume(self):
        """Goes on after its latest mark: the time since then is no part of it."""
        self._origin = clock.now_ns() - self.marks[-1]

    def elapsed(self):
        return clock.now_ns() - self._origin

    def hear(self):
        self.heard = self.elapsed()

    def mark(self):
        self.marks.append(self.elapsed())


def fits(rows, prompts, new_tokens):
    return len(rows) == len(prompts) and all(len(row) == new_tokens for row in rows)


def check_prompts(prompts, new_tokens):
    """Of one length, with something to continue and something to add. Returns the length."""
    lengths = {len(prompt) for prompt in prompts}
    if len(lengths) != 1 or 0 in lengths or not new_tokens:
        raise bad_input("a case needs at least one token to continue, one to add, and prompts of one length")
    return lengths.pop()


def check_trace(case, new_tokens):
    if not fits(case.get("trace") or [], case["prompts"], new_tokens):
        raise bad_input("each prompt needs a trace as long as the new tokens")


def check_tokens(rows, capacity, context):
    """What engines refuse, refused here once for all adapters."""
    if capacity > context["context"]:
        raise bad_input(f"{capacity} tokens do not fit the model's context of {context['context']} tokens")
    check_vocabulary(rows, context["vocabulary"])


def check_vocabulary(rows, vocabulary):
    outside = [token for row in rows for token in row if not 0 <= token < vocabulary]
    if outside:
        raise bad_input(f"token id {outside[0]} is outside the vocabulary of {vocabulary} tokens")

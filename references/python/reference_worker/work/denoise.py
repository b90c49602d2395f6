"""Generation by masked diffusion, as in the crate `worker`: every step is a pass over all positions and unmasks some of
them. docs/reference/protocol.md has the steps; they are Dream's (Ye and others 2025).

Here is the loop, in the standard library alone. What a position would become is `choice.py`'s, which needs numpy.
"""

from ctypes import c_float

from ..bundle import bad_input, unsupported
from ..score import Rows, write
from . import Request, Workload, check_prompts, check_tokens, check_trace, fits

ALGORITHMS = ("maskgit_plus", "topk_margin", "entropy", "origin")


def f32(number):
    """The nearest number in single precision. A sum, product or quotient of two such numbers that is computed in double
    precision and then rounded is the one that single precision gives."""
    return c_float(number).value


class Denoising(Workload):
    """Fills in the masks of sequences. A request's marks: the end of each step."""

    def __init__(self, adapter, work, context, is_fed):
        super().__init__(adapter, work, context)
        how, self._mask = work["how"], context["mask_token"]
        check(work, context, is_fed)
        self._forced, self.marks = work["forced"], how["steps"]
        self._rule = {
            "algorithm": how["algorithm"], "top_k": how.get("top_k"),
            "top_p": None if how.get("top_p") is None else f32(how["top_p"]),
        }
        self._times = times(self.marks, how.get("eps", 1e-3))

    def check(self, case, given):
        """Refuses what a request of this case cannot be given."""
        raise bad_input("a request of masked diffusion is given what its case has: leave `input` out")

    def begin(self, number, given=None):
        """A request up to the end of its first step."""
        self._case = self.cases[number]
        self._states = self._masked(self._case, self.new_tokens)
        self._tokens = [[self._mask] * self.new_tokens for _ in self._states]
        # Beyond the last step: what is never unmasked.
        self._unmasked = [[self.marks] * self.new_tokens for _ in self._states]
        self._passes = []
        request = Request(number)
        request.begin()
        self._steps(request, 1)
        return request

    def advance(self, request, marks, given=None):
        """So many more steps of a request, or as many as it still has."""
        request.resume()
        self._steps(request, marks)

    def _steps(self, request, steps):
        adapter, states, tokens, case = self.adapter, self._states, self._tokens, self._case
        length = len(states[0])
        prompt, made = length - self.new_tokens, len(request.marks)
        for step in range(made, min(made + steps, self.marks)):
            adapter.begin(len(states), length)
            logits = adapter.append(states, True)
            passed = request.elapsed()
            rows = adapter.array(logits)
            for sequence, state in enumerate(states):
                choices = self._choices(rows[sequence], state, prompt)
                chosen = self._selected(step, choices)
                trace = case["trace"][sequence] if self._forced else None
                for place in range(self.new_tokens):
                    due = case["unmasked"][sequence][place] == step if self._forced else place in chosen
                    if not due:
                        continue
                    token = tokens[sequence][place] = choices[place][0]
                    if place in chosen:
                        self._unmasked[sequence][place] = step
                    state[prompt + place] = trace[place] if self._forced else token
            self._passes.append(passed)
            request.mark()

    def output(self, request):
        return {"steps": {"tokens": self._tokens, "unmasked": self._unmasked, "passes_ns": self._passes}}

    def along(self, outputs):
        """The cases along what their requests gave."""
        steps = (output["steps"] for output in outputs)
        return [{**case, "trace": of["tokens"], "unmasked": of["unmasked"]} for case, of in zip(self.cases, steps)]

    def parity(self, task):
        """The logits that tokens were unmasked by, and behind them the last position's of the last step."""
        tensors = {}
        for index, case in enumerate(self.cases):
            rows = tensors[f"case.{index}"] = Rows(len(case["trace"]), 1 + len(case["trace"][0]), self.vocabulary)
            self._along_trace(case, rows.put_row)
        write(tensors, task["file"])

    def _along_trace(self, case, keep):
        """The logits by which the case's trace was unmasked, and behind them those of the last position in the last
        step: `keep(sequence, row, f32 bytes)`, of 1 + new tokens rows."""
        adapter, trace, unmasked = self.adapter, case["trace"], case["unmasked"]
        new_tokens = len(trace[0])
        states = self._masked(case, new_tokens)
        length = len(states[0])
        prompt = length - new_tokens
        for step in range(self.marks):
            is_last = step + 1 == self.marks
            due = [(s, place) for s, row in enumerate(unmasked) for place, at in enumerate(row) if at == step]
            # A step that unmasks nothing shows nothing.
            if not due and not is_last:
                continue
            adapter.begin(len(states), length)
            rows = adapter.array(adapter.append(states, True))
            for sequence, place in due:
                keep(sequence, place, rows[sequence][prompt + place - 1].tobytes())
                states[sequence][prompt + place] = trace[sequence][place]
            for sequence in range(len(states)) if is_last else ():
                keep(sequence, new_tokens, rows[sequence][-1].tobytes())

    def _masked(self, case, new_tokens):
        return [prompt + [self._mask] * new_tokens for prompt in case["prompts"]]

    def _choices(self, rows, state, prompt):
        """By masked place, the token that it would become and how sure that is. Logits are shifted by one: the row of
        the position before a place is the place's."""
        places = [place for place, token in enumerate(state[prompt:]) if token == self._mask]
        return dict(zip(places, choices(rows, [prompt + place - 1 for place in places], self._rule)))

    def _selected(self, step, choices):
        """The places that a step unmasks: the surest, equals by position."""
        # In single precision, as the published sampler computes it: what is cut off to a whole number must be the same.
        share = f32(1.0 - f32(self._times[step + 1] / self._times[step]))
        is_last = step + 1 == self.marks
        count = len(choices) if is_last else int(f32(len(choices) * share))
        return set(sorted(choices, key=lambda place: (-choices[place][1], place))[:count])


def times(steps, eps):
    """`steps` + 1 equal steps from 1 to `eps` in single precision, each half counted from its own end, as
    torch.linspace does."""
    eps = f32(eps)
    step = f32(f32(eps - 1.0) / steps)
    half = (steps + 1) // 2
    rising = lambda index: f32(1.0 + f32(step * index))
    return [rising(index) if index < half else f32(eps - f32(step * (steps - index))) for index in range(steps + 1)]


def choices(rows, positions, rule):
    """The token and the confidence of each of the positions, whose logits are `rows[position]`."""
    # Imported here, so that the tests of the loop can do without numpy.
    from .choice import choices

    return choices(rows, positions, **rule)


def check(work, context, is_fed):
    """Refuses numbers that make no sense, cases that cannot be denoised, and what takes random numbers."""
    task, mask = work["how"], context["mask_token"]
    if mask is None:
        raise bad_input("this model generates token by token: it has no mask to denoise")
    if task["steps"] < 1:
        raise bad_input("0 steps unmask nothing: give 1 or more")
    if task["algorithm"] not in ALGORITHMS:
        raise bad_input(f"unknown algorithm {task['algorithm']!r}; there are {', '.join(ALGORITHMS)}")
    for name, words in (("temperature", "the temperature"), ("alg_temp", "alg_temp")):
        if not 0 <= task.get(name, 0) < float("inf"):
            raise bad_input(f"{words} is {task[name]}: give 0 or more")
    if not 0 <= task.get("eps", 1e-3) < 1:
        raise bad_input(f"eps is {task['eps']}: give 0 or more, and less than 1")
    if task.get("top_k") == 0:
        raise bad_input("a top_k of 0 leaves no token: give 1 or more")
    if task.get("top_p") is not None and not 0 < task["top_p"] <= 1:
        raise bad_input(f"top_p is {task['top_p']}: give a share above 0, up to 1")
    for case in work["cases"]:
        length = check_prompts(case["prompts"], work["new_tokens"])
        if any(mask in prompt for prompt in case["prompts"]):
            raise bad_input(f"the prompt holds the mask, token {mask}: it would be filled in like the rest")
        if is_fed or work.get("forced"):
            check_trace(case, work["new_tokens"])
            steps, unmasked = range(task["steps"]), case.get("unmasked") or []
            is_whole = fits(unmasked, case["prompts"], work["new_tokens"])
            if not is_whole or any(step not in steps for row in unmasked for step in row):
                raise bad_input(
                    "each token of a trace needs the step that unmasks it, from 0 and below the number of steps"
                )
        check_tokens(case["prompts"] + (case.get("trace") or []), length + work["new_tokens"], context)
    if task.get("temperature", 0) > 0 or task.get("alg_temp", 0) > 0 or task["algorithm"] == "origin":
        raise unsupported(
            "random numbers are drawn by workers in Rust: a reference denoises at temperature 0 with an alg_temp of 0, "
            "by maskgit_plus, topk_margin or entropy"
        )

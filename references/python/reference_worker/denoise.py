"""Generation by masked diffusion, as in the crate `worker`: every step is a pass over all positions and unmasks some of
them. docs/protocol.md has the steps; they are Dream's (Ye and others 2025).

Here is the loop, in the standard library alone. What a position would become is `choice.py`'s, which needs numpy.
"""

from ctypes import c_float

from . import clock
from .bundle import bad_input, unsupported

ALGORITHMS = ("maskgit_plus", "topk_margin", "entropy", "origin")


def f32(number):
    """The nearest number in single precision. A sum, product or quotient of two such numbers that is computed in double
    precision and then rounded is the one that single precision gives."""
    return c_float(number).value


class Denoiser:
    """Fills in the masks of sequences, by the job's `denoise`. `check` comes before."""

    def __init__(self, task, mask):
        self.steps, self._mask = task["steps"], mask
        self._rule = {
            "algorithm": task["algorithm"], "top_k": task.get("top_k"),
            "top_p": None if task.get("top_p") is None else f32(task["top_p"]),
        }
        self._times = times(self.steps, task.get("eps", 1e-3))

    def request(self, adapter, case, new_tokens, steps, forced):
        """One request, up to so many steps, and the clock's reading at its start. With `forced`, each step is fed the state
        that the case's trace has."""
        now_ns = clock.now_ns
        states = self._masked(case, new_tokens)
        batch, length = len(states), len(states[0])
        prompt = length - new_tokens
        tokens = [[self._mask] * new_tokens for _ in states]
        # Beyond the last step: what is never unmasked.
        unmasked = [[self.steps] * new_tokens for _ in states]
        times_ns, sampler_ns = [], []

        start = last = now_ns()
        for step in range(steps):
            adapter.begin(batch, length)
            logits = adapter.append(states, True)
            passed = now_ns()
            rows = adapter.array(logits)
            for sequence, state in enumerate(states):
                choices = self._choices(rows[sequence], state, prompt)
                chosen = self._selected(step, choices)
                trace = case["trace"][sequence] if forced else None
                for place in range(new_tokens):
                    due = case["unmasked"][sequence][place] == step if forced else place in chosen
                    if not due:
                        continue
                    token = tokens[sequence][place] = choices[place][0]
                    if place in chosen:
                        unmasked[sequence][place] = step
                    state[prompt + place] = trace[place] if forced else token
            now = now_ns()
            times_ns.append(now - last)
            sampler_ns.append(now - passed)
            last = now
        return start, {
            "first_token_ns": times_ns[0], "gaps_ns": times_ns[1:], "tokens": tokens, "unmasked": unmasked,
            "sampler_ns": sampler_ns,
        }

    def along_trace(self, adapter, case, keep):
        """The logits by which the case's trace was unmasked, and behind them those of the last position in the last
        step: `keep(sequence, row, f32 bytes)`, of 1 + new tokens rows."""
        trace, unmasked = case["trace"], case["unmasked"]
        new_tokens = len(trace[0])
        states = self._masked(case, new_tokens)
        length = len(states[0])
        prompt = length - new_tokens
        for step in range(self.steps):
            is_last = step + 1 == self.steps
            due = [(s, place) for s, row in enumerate(unmasked) for place, at in enumerate(row) if at == step]
            # A step that unmasks nothing tells nothing.
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
        is_last = step + 1 == self.steps
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


def check(task, mask, cases):
    """Refuses numbers that make no sense, cases that cannot be denoised, and what takes random numbers."""
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
    for case in cases:
        if case.get("context"):
            raise bad_input("masked diffusion keeps nothing from one pass to the next: leave the context out")
        if any(mask in prompt for prompt in case["prompts"]):
            raise bad_input(f"the prompt holds the mask, token {mask}: it would be filled in like the rest")
    if task.get("temperature", 0) > 0 or task.get("alg_temp", 0) > 0 or task["algorithm"] == "origin":
        raise unsupported(
            "random numbers are drawn by workers in Rust: a reference denoises at temperature 0 with an alg_temp of 0, "
            "by maskgit_plus, topk_margin or entropy"
        )

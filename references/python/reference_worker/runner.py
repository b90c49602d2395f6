"""The timed loop. Between the first and the last sample of a case there is no I/O and no logging."""

from . import clock


class Runner:
    """Runs cases through an adapter and times them."""

    def __init__(self, adapter, cases, new_tokens, decode, kv_cache):
        self._adapter, self._cases, self._new_tokens = adapter, cases, new_tokens
        self._forced, self._cached = decode == "forced", kv_cache == "on"

    def first_token(self, case):
        """The cold start: one request up to its first token, its result thrown away."""
        prompts = case["prompts"]
        self._adapter.begin(len(prompts), len(prompts[0]) + self._new_tokens)
        self._adapter.argmax(self._adapter.append(prompts, False))

    def iteration(self, index):
        return {"index": index, "cases": [self._case(case) for case in self._cases]}

    def _case(self, case):
        adapter, now_ns = self._adapter, clock.now_ns
        prompts = case["prompts"]
        batch, capacity = len(prompts), len(prompts[0]) + self._new_tokens
        trace = [[[row[step]] for row in case["trace"]] for step in range(self._new_tokens)] if self._forced else None
        prefixes = [list(prompt) for prompt in prompts]
        gaps, tokens = [], []

        start = now_ns()
        adapter.begin(batch, capacity)
        tokens.append(adapter.argmax(adapter.append(prompts, False)))
        last = now_ns()
        first_token_ns = last - start
        for step in range(1, self._new_tokens):
            feed = trace[step - 1] if self._forced else [[token] for token in tokens[-1]]
            if self._cached:
                logits = adapter.append(feed, False)
            else:
                for prefix, token in zip(prefixes, feed):
                    prefix.extend(token)
                adapter.begin(batch, capacity)
                logits = adapter.append(prefixes, False)
            tokens.append(adapter.argmax(logits))
            now = now_ns()
            gaps.append(now - last)
            last = now
        rows = [list(row) for row in zip(*tokens)]
        return {"first_token_ns": first_token_ns, "gaps_ns": gaps, "tokens": rows}


class Slowed:
    """A positive control: every `append` lasts longer by a share of its own time."""

    def __init__(self, adapter, share):
        self._adapter, self._share = adapter, share

    def __getattr__(self, name):
        return getattr(self._adapter, name)

    def in_effect(self):
        observed = self._adapter.in_effect()
        percent = f"{round(self._share * 1e4) / 1e2:g}"
        return {**observed, "kernels": observed["kernels"] + [f"slowed by {percent} % (positive control)"]}

    def append(self, tokens, every):
        before = clock.now_ns()
        logits = self._adapter.append(tokens, every)
        own = clock.now_ns() - before
        # Spins rather than sleeps: the kernel wakes sleepers late by more than the share asked for.
        end = before + own + int(own * self._share)
        while clock.now_ns() < end:
            pass
        return logits

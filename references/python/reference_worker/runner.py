"""The timed loop. Between the first and the last sample of a case there is no I/O and no logging."""

from . import clock


class Runner:
    """Runs cases through an adapter and times them."""

    def __init__(self, adapter, cases, new_tokens, decode, kv_cache, denoiser=None):
        self._adapter, self._cases, self._new_tokens, self._denoiser = adapter, cases, new_tokens, denoiser
        self._forced, self._cached = decode == "forced", kv_cache == "on"

    def compiled(self):
        return self._adapter.compiled()

    def gpu_allocated(self):
        return self._adapter.gpu_allocated()

    def first_request(self):
        """The cold start: the first case's request, after its context, and the clock's reading at the request's start."""
        self.fill_context(0)
        return self._request(self._cases[0], self._whole())

    def iteration(self, index):
        cases = []
        for case in range(len(self._cases)):
            self.fill_context(case)
            cases.append(self.request(case))
        return {"index": index, "cases": cases}

    def lead_in(self, case, new_tokens):
        """The beginning of a request, up to so many new tokens or steps of denoising, untimed."""
        if new_tokens > 0:
            self.fill_context(case)
            self._request(self._cases[case], min(new_tokens, self._whole()))

    def fill_context(self, case):
        """Computes the context of a case, if it has one, for the request that comes next.

        It is no part of that request: neither of its times nor of what it uses.
        """
        context, prompt, capacity = self._parts(self._cases[case])
        if context:
            self._begin(context, len(prompt), capacity)

    def case(self, number, trace=None):
        """A case by its number, with a trace of a request's own if there is one."""
        return {**self._cases[number], "trace": trace} if trace else self._cases[number]

    def request(self, case, trace=None):
        """One request of a case, by its number, whose context is in the cache."""
        return self._request(self.case(case, trace), self._whole())[1]

    def _whole(self):
        """The tokens, or the steps of denoising, of a request."""
        return self._denoiser.steps if self._denoiser else self._new_tokens

    def _request(self, case, steps):
        if self._denoiser:
            return self._denoiser.request(self._adapter, case, self._new_tokens, steps, self._forced)
        return self.timed(case, steps)

    def _parts(self, case):
        """What is in the cache when the clock starts, what is computed then, and the room for all of it.

        With the cache off there is nothing to put a context into, so it is computed with the prompt.
        """
        prefixes = rows_of(case)
        context, prompt = (case.get("context") or [], case["prompts"]) if self._cached else ([], prefixes)
        return context, prompt, len(prefixes[0]) + self._new_tokens

    def _begin(self, context, batch, capacity):
        self._adapter.begin(batch, capacity)
        if context:
            self._adapter.append(context, False)

    def timed(self, case, new_tokens):
        """The beginning of a request, up to so many new tokens, and the clock's reading at its start.

        Its context is in the cache.
        """
        request = self.begin(case)
        self.advance(request, new_tokens - 1)
        return request.start, request.sample()

    def begin(self, case):
        """The prompt pass of a request, up to its first token. Its context is in the cache."""
        adapter, now_ns = self._adapter, clock.now_ns
        context, prompt, capacity = self._parts(case)
        request = UnderWay(case, len(prompt), capacity)
        request.start = now_ns()
        if not context:
            adapter.begin(request.batch, capacity)
        request.tokens.append(adapter.argmax(adapter.append(prompt, False)))
        request.first_token_ns = now_ns() - request.start
        return request

    def advance(self, request, steps):
        """So many more steps of a request, or as many as it still has."""
        adapter, now_ns = self._adapter, clock.now_ns
        gaps, tokens, prefixes = request.gaps, request.tokens, request.prefixes
        made = len(tokens)
        after = min(made + steps, self._new_tokens)
        trace = None
        if self._forced:
            trace = [[[row[step]] for row in request.case["trace"]] for step in range(made - 1, after - 1)]
        last = now_ns()
        for step in range(made, after):
            feed = trace[step - made] if self._forced else [[token] for token in tokens[-1]]
            if self._cached:
                logits = adapter.append(feed, False)
            else:
                for prefix, token in zip(prefixes, feed):
                    prefix.extend(token)
                adapter.begin(request.batch, request.capacity)
                logits = adapter.append(prefixes, False)
            tokens.append(adapter.argmax(logits))
            now = now_ns()
            gaps.append(now - last)
            last = now

    def is_complete(self, request):
        return len(request.tokens) >= self._new_tokens


class UnderWay:
    """A request between two of its steps."""

    def __init__(self, case, batch, capacity):
        self.case, self.batch, self.capacity = case, batch, capacity
        self.prefixes = rows_of(case)
        self.start = self.first_token_ns = 0
        self.gaps, self.tokens = [], []

    def sample(self):
        rows = [list(row) for row in zip(*self.tokens)]
        return {"first_token_ns": self.first_token_ns, "gaps_ns": self.gaps, "tokens": rows}


def rows_of(case):
    """Context and prompt of each sequence, in lists of their own."""
    prompts = case["prompts"]
    return [context + prompt for context, prompt in zip(case.get("context") or [[]] * len(prompts), prompts)]


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

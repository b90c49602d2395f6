"""Continuation, token by token."""

from math import isfinite

from ..bundle import bad_input, unsupported
from ..score import Rows, put, write
from . import Request, Workload, check_prompts, check_tokens, check_trace, check_vocabulary, fits, heard


class Generating(Workload):
    """Continues prompts. A request's marks: its first token, and each further one."""

    def __init__(self, adapter, work, context, is_fed):
        super().__init__(adapter, work, context)
        check(work, context, is_fed)
        if work.get("prefill_chunk"):
            raise unsupported(f"{adapter.FRAMEWORK} reads prompts in chunks in no reference: name one of the engines")
        self._forced, self._cached = work["decode"] == "forced", work["kv_cache"] == "on"
        self.marks = work["new_tokens"]
        self._audio = heard.Audio(context["audio"]) if context["audio"] else None
        self._sampler = None
        if sampling := sampled(work):
            # Imported here, since it alone needs numpy.
            from .draw import Sampler

            draws = self.new_tokens * max(len(case["prompts"]) for case in self.cases)
            self._sampler = Sampler(sampling, self.vocabulary, len(self.cases), draws)

    def check(self, case, given):
        """Refuses what a request of this case cannot be given."""
        self._check(case, given, self.new_tokens)

    def check_slice(self, case, given, request, marks):
        """Each step of a later slice is fed a token of its trace. The first slice has no such step."""
        prompts, trace, turn = continued(given)
        if request is None and trace:
            raise bad_input("the first slice of a request may be given prompts, and no trace")
        if request is not None and prompts:
            raise bad_input("a later slice of a request may be given a trace, and no prompts")
        if request is not None and turn is not None:
            raise bad_input("a turn's audio comes with the beginning of a request")
        if request is not None and not self._continues:
            raise bad_input("a later slice may be given a trace if its request began with `continue`")
        self._check(case, given, min(marks, self.marks - len(request.marks)) if request else 0)

    def _check(self, case, given, steps):
        (prompts, trace, turn), own = continued(given), self.cases[case]["prompts"]
        if turn is not None and (not self._audio or not isinstance(turn, int) or turn < 0):
            raise bad_input("a turn's audio is a frame's number, of a request that has audio")
        if prompts and list(map(len, prompts)) != list(map(len, own)):
            raise bad_input("a turn's prompts need to be as many as those of its case, and as long")
        if trace and not fits(trace, own, steps):
            raise bad_input(f"this turn's trace needs a row for each prompt, of length {steps}")
        check_vocabulary(prompts + trace, self.vocabulary)

    def prepare(self, case):
        context, prompt, capacity = self._parts(self.cases[case])
        if context:
            self.adapter.begin(len(prompt), capacity)
            self.adapter.append(context, False)

    def begin(self, number, given=None):
        """The prompt pass of a request, up to its first token. Its context is in the cache."""
        adapter, case = self.adapter, self.cases[number]
        self._continues, self._trace = given is not None, []
        if self._continues:
            prompts, self._trace, turn = continued(given)
            case = {**case, "prompts": prompts or case["prompts"]}
            if turn is not None:
                case["audio"] = {**case["audio"], "turn": turn}
        elif self._forced:
            self._trace = case.get("trace") or []
        context, prompt, self._capacity = self._parts(case)
        self._batch, self._prefixes, self._tokens = len(prompt), rows_of(case), []
        # Those of the request before take no memory while this one is computed.
        self._logits = None
        if self._sampler:
            self._sampler.begin(number)
        frames = self._audio and self._audio.frames(case["audio"])
        request = Request(number)
        request.begin()
        if not context:
            adapter.begin(self._batch, self._capacity)
        if frames:
            adapter.listen(frames)
            request.hear()
        logits = adapter.append(prompt, False)
        self._tokens.append(self._chosen(logits))
        request.mark()
        self._logits = logits
        return request

    def advance(self, request, marks, given=None):
        """So many more tokens of a request, or as many as it still has. `given`: what a later slice is fed."""
        adapter, tokens, prefixes = self.adapter, self._tokens, self._prefixes
        made, logits = len(tokens), self._logits
        after = min(made + marks, self.new_tokens)
        trace, first = (self._trace, made - 1) if given is None else (continued(given)[1], 0)
        # Empty where each step is fed what the one before it chose.
        feeds = [[[row[at]] for row in trace] for at in range(first, first + after - made)] if trace else []
        request.resume()
        for step in range(made, after):
            feed = feeds[step - made] if feeds else [[token] for token in tokens[-1]]
            if self._cached:
                logits = adapter.append(feed, False)
            else:
                for prefix, token in zip(prefixes, feed):
                    prefix.extend(token)
                adapter.begin(self._batch, self._capacity)
                logits = adapter.append(prefixes, False)
            tokens.append(self._chosen(logits))
            request.mark()
        self._logits = logits

    def logits(self, tokens):
        check_vocabulary([tokens], self.vocabulary)
        values = memoryview(self.adapter.values(self._logits)).cast("f")
        rows = [values[sequence * self.vocabulary :] for sequence in range(self._batch)]
        # JSON has no word for what is not finite.
        return [[row[token] if isfinite(row[token]) else None for token in tokens] for row in rows]

    def _chosen(self, logits):
        """A token of each sequence from logits of the last position: the most likely one, or drawn."""
        if self._sampler is None:
            return self.adapter.argmax(logits)
        return self._sampler.draw(self.adapter.values(logits), self._batch)

    def output(self, request):
        return {"tokens": [list(row) for row in zip(*self._tokens)]}

    def along(self, outputs):
        """The cases along what their requests gave."""
        return [{**case, "trace": output["tokens"]} for case, output in zip(self.cases, outputs)]

    def parity(self, task):
        """Logits along the cases' traces: context and prompt in one piece, the first `steps` tokens of the trace one at a
        time, the rest in one piece.

        With `prompt_last_only`, of context and prompt the last position's logits alone are kept.
        """
        adapter, tensors = self.adapter, {}
        for index, case in enumerate(self.cases):
            prefixes = rows_of(case)
            sequences = [prefix + trace for prefix, trace in zip(prefixes, case["trace"])]
            prefix, positions = len(prefixes[0]), len(sequences[0])
            left_out = prefix - 1 if task.get("prompt_last_only") else 0
            kept = min(task.get("sequences") or len(sequences), len(sequences))
            logits = tensors[f"case.{index}"] = Rows(kept, positions - left_out, self.vocabulary)
            adapter.begin(len(sequences), positions)
            if self._audio:
                adapter.listen(self._audio.frames(case["audio"]))
            logits.put(0, prefix - left_out, adapter.values(adapter.append(prefixes, not left_out)))
            single = min(prefix + task["steps"], positions)
            ends = [*range(prefix + 1, single + 1), positions]
            for start, end in zip([prefix] + ends, ends):
                if start < end:
                    put(adapter, logits, sequences, start, end, left_out)
        write(tensors, task["file"])

    def _parts(self, case):
        """What is in the cache when the clock starts, what is computed then, and the room for all of it.

        With the cache off there is nothing to put a context into, so it is computed with the prompt.
        """
        prefixes = rows_of(case)
        context, prompt = (case.get("context") or [], case["prompts"]) if self._cached else ([], prefixes)
        return context, prompt, len(prefixes[0]) + self.new_tokens


def continued(given):
    """Prompts and trace of a turn's input, either empty where it is left out, and the turn of its audio or None."""
    parts = given.get("continue")
    if parts is None:
        raise bad_input("a request that continues prompts may be given `continue` alone")
    return parts.get("prompts") or [], parts.get("trace") or [], parts.get("turn")


def rows_of(case):
    """Context and prompt of each sequence, in lists of their own."""
    prompts = case["prompts"]
    return [context + prompt for context, prompt in zip(case.get("context") or [[]] * len(prompts), prompts)]


def sampled(work):
    """How tokens are drawn; None where they are not."""
    decode = work["decode"]
    return decode.get("sampled") if isinstance(decode, dict) else None


def check(work, context, is_fed):
    """Whether the requests make sense for this model."""
    if sampling := sampled(work):
        check_sampling(sampling)
    elif work["decode"] not in ("forced", "greedy"):
        raise bad_input(f"unknown decode {work['decode']!r}; there are forced, greedy, sampled")
    if context["mask_token"] is not None:
        raise bad_input(
            "this model generates by masked diffusion, not token by token: the job has to say how it denoises"
        )
    for case in work["cases"]:
        if len({len(prompt) for prompt in case["prompts"]}) > 1:
            raise unsupported("a reference takes prompts of one length in a batch: leave --mixed out, or this framework")
        length = check_prompts(case["prompts"], work["new_tokens"])
        before = case.get("context") or []
        heard.check([case["audio"]] if case.get("audio") else [], context["audio"])
        if context["audio"] and (before or len(case["prompts"]) > 1 or work["kv_cache"] != "on"):
            raise bad_input("audio has one prompt, a KV cache, and no context")
        depths = {len(row) for row in before}
        if before and (len(before) != len(case["prompts"]) or len(depths) != 1 or 0 in depths):
            raise bad_input("a context has a row of tokens for each prompt, all of one length; leave it out for none")
        if is_fed or work["decode"] == "forced":
            check_trace(case, work["new_tokens"])
        capacity = sum(depths) + length + work["new_tokens"]
        check_tokens(before + case["prompts"] + (case.get("trace") or []), capacity, context)


def check_sampling(sampling):
    """Whether these numbers make sense."""
    temperature, top_k, top_p = sampling["temperature"], sampling.get("top_k"), sampling.get("top_p")
    if not 0 < temperature < float("inf"):
        raise bad_input(f"a temperature of {temperature} draws nothing: give one above 0, or decode greedily")
    if top_k == 0:
        raise bad_input("a top_k of 0 leaves no token to draw: give 1 or more")
    if top_p is not None and not 0 < top_p <= 1:
        raise bad_input(f"top_p is {top_p}: give a share above 0, up to 1")

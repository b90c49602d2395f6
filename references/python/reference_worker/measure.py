"""The phases of a measurement, in order, and what is read at their ends."""

from . import clock, denoise, score, turns
from .bundle import bad_input, identity_of, sha256_of, unsupported
from .memory import Phase
from .runner import Runner
from .warmup import warm_up


def measure(adapter, task, context, stream, send):
    """`context`: vocabulary, context (longest), mask_token, spawned_at_ns, weights_file, earlier_peak. Turns come from
    `stream`."""
    _check(task, context)
    denoiser = _denoiser(task, task["cases"], context)
    runner = Runner(adapter, task["cases"], task["new_tokens"], task["decode"], task["kv_cache"], denoiser)

    phase = Phase()
    before = clock.now_ns()
    start, sample = runner.first_request()
    first_token = start + sample["first_token_ns"]
    spawned = context["spawned_at_ns"]
    memory = phase.end()
    cold = {
        "first_token_ns": first_token - before, "gaps_ns": sample["gaps_ns"],
        "since_spawn_ns": None if spawned is None else max(first_token - spawned, 0),
    }
    send("cold_start", **cold, memory=memory)
    peaks = [context["earlier_peak"], memory["peak_bytes"]]

    phase = Phase()
    iterations, settled = warm_up(runner, task["warmup"])
    memory = phase.end()
    peaks.append(memory["peak_bytes"])
    send("warmup", iterations=iterations, settled=settled, memory=memory)

    usage, finish = turns.take(runner, task, stream, send)
    peaks.append(usage["memory"]["peak_bytes"])
    peak = max((peak for peak in peaks if peak is not None), default=None)
    file = context["weights_file"]
    identity = identity_of(file)
    sha256 = sha256_of(file) if finish.get("hash") else None
    send("usage", **usage, peak_bytes=peak, weights_sha256=sha256, weights_identity=identity)

    parity = finish.get("parity")
    if parity:
        score.along_trace(adapter, task["cases"], parity, context["vocabulary"], denoiser)
        send("parity", file=parity["file"])


def generate(adapter, task, context, send):
    """Greedy continuation or denoising, untimed, and the logits along it where they are asked for."""
    _check_decode({"sampled": task["sampling"]} if task.get("sampling") else "greedy")
    cases = [{"prompts": prompts, "trace": []} for prompts in task["prompts"]]
    for case in cases:
        check_case(case, task["new_tokens"], context)
    denoiser = _denoiser(task, cases, context)
    iteration = Runner(adapter, cases, task["new_tokens"], "greedy", "on", denoiser).iteration(0)
    for case, sample in zip(cases, iteration["cases"]):
        case["trace"] = sample["tokens"]
        case["unmasked"] = sample.get("unmasked", [])
    parity = task.get("parity")
    if parity:
        score.along_trace(adapter, cases, parity, context["vocabulary"], denoiser)
        send("parity", file=parity["file"])
    unmasked = {"unmasked": [case["unmasked"] for case in cases]} if denoiser else {}
    send("generated", tokens=[case["trace"] for case in cases], **unmasked)


def _check(task, context):
    if not task["cases"] or not task["warmup"]["max_iterations"]:
        raise bad_input("a measurement needs cases and warm-up")
    _check_decode(task["decode"])
    for case in task["cases"]:
        check_case(case, task["new_tokens"], context)
        fits = len(case["trace"]) == len(case["prompts"])
        if not fits or any(len(row) != task["new_tokens"] for row in case["trace"]):
            raise bad_input("each prompt needs a trace as long as the new tokens")
        if task.get("denoise"):
            steps, unmasked = range(task["denoise"]["steps"]), case.get("unmasked") or []
            fits = len(unmasked) == len(case["trace"]) and all(len(row) == task["new_tokens"] for row in unmasked)
            if not fits or any(step not in steps for row in unmasked for step in row):
                raise bad_input(
                    "each token of a trace needs the step that unmasks it, from 0 and below the number of steps"
                )


def _denoiser(task, cases, context):
    """What fills in masks, if that is how the model generates, or None. Another way is refused."""
    asked, mask = task.get("denoise"), context["mask_token"]
    if asked:
        denoise.check(asked, mask, cases)
        return denoise.Denoiser(asked, mask)
    if mask is not None:
        raise bad_input(
            "this model generates by masked diffusion, not token by token: the job has to say how it denoises"
        )
    return None


def check_case(case, new_tokens, context):
    lengths = {len(prompt) for prompt in case["prompts"]}
    if len(lengths) != 1 or 0 in lengths or not new_tokens:
        raise bad_input("a case needs at least one token to continue, one to add, and prompts of one length")
    before = case.get("context") or []
    depths = {len(row) for row in before}
    if before and (len(before) != len(case["prompts"]) or len(depths) != 1 or 0 in depths):
        raise bad_input("a context has a row of tokens for each prompt, all of one length; leave it out for none")
    capacity = sum(depths) + lengths.pop() + new_tokens
    check_tokens(before + case["prompts"] + case["trace"], capacity, context)


def _check_decode(decode):
    if decode not in ("forced", "greedy"):
        raise unsupported("tokens are drawn by workers in Rust: a reference decodes forced or greedily")


def check_tokens(rows, capacity, context):
    """What engines refuse, refused here once for all adapters."""
    if capacity > context["context"]:
        raise bad_input(f"{capacity} tokens do not fit the model's context of {context['context']} tokens")
    outside = [token for row in rows for token in row if not 0 <= token < context["vocabulary"]]
    if outside:
        raise bad_input(f"token id {outside[0]} is outside the vocabulary of {context['vocabulary']} tokens")

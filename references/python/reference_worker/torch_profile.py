"""PyTorch's own profiler around a model of transformers, its operations named by the module that they are in."""

import json
import re

import torch

# The last name of a module that is no part of a layer, and of one that is.
WHOLE = {
    **dict.fromkeys(("embed_tokens", "embed_positions", "embed_in", "wte", "wpe"), "embedding"),
    **dict.fromkeys(("norm", "layer_norm", "ln_f"), "final norm"), "lm_head": "head", "proj_out": "head",
}
LAYER = {
    "input_layernorm": "attention norm", "ln_1": "attention norm",
    **dict.fromkeys(("self_attn", "attn", "attention"), "attention"),
    "post_attention_layernorm": "mlp norm", "ln_2": "mlp norm", "mlp": "mlp",
    # Of models that hear.
    "self_attn_layer_norm": "attention norm", "encoder_attn_layer_norm": "cross attention norm",
    "encoder_attn": "cross attention", "final_layer_norm": "mlp norm", "fc1": "mlp", "fc2": "mlp",
}
# The whole of such a model's encoder; its decoder's modules are as those of other models.
AUDIO, DECODER = "model.encoder", "model.decoder."
IN_LAYER = re.compile(r"\.(?:layers|h)\.(\d+)\.(\w+)$")


def part_of(module):
    """The part of the model that a module is, by its path; None for what is inside of one, or holds several."""
    if module.startswith(AUDIO):
        return "audio encoder" if module == AUDIO else None
    module = module.replace(DECODER, "model.")
    found = IN_LAYER.search(module)
    if found:
        return f"layer {found[1]} {LAYER[found[2]]}" if found[2] in LAYER else None
    return WHOLE.get(module.rpartition(".")[2]) if module.count(".") < 2 else None


class Profile:
    """Runs from when it is made. `named`: whether the modules are marked; what is compiled cannot be."""

    def __init__(self, model, named):
        self._hooks = list(marks(model)) if named else []
        self._named = named
        self._profiler = torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True, acc_events=True,
        )
        self._profiler.start()

    def end(self, directory):
        self._profiler.stop()
        for hook in self._hooks:
            hook.remove()
        file = directory / "torch.json"
        self._profiler.export_chrome_trace(str(file))
        told = json.loads(file.read_text(errors="replace"))
        file.unlink()
        notes = []
        if not self._named:
            notes.append(
                "Passes are compiled, so their kernels are named by inductor and the part of the model is not known."
            )
        return {"profiler": "torch.profiler", "clock": "CLOCK_REALTIME", "events": events(told), "notes": notes}


def marks(model):
    """Hooks that mark when each part of the model is computed."""
    for path, module in model.named_modules():
        part = part_of(path)
        if part is None:
            continue
        opened = []

        def enter(module, arguments, part=part, opened=opened):
            opened.append(torch.profiler.record_function(part))
            opened[-1].__enter__()

        def leave(module, arguments, result, opened=opened):
            opened.pop().__exit__(None, None, None)

        yield module.register_forward_pre_hook(enter)
        yield module.register_forward_hook(leave)


def events(told):
    """The complete events of a Chrome trace as PyTorch writes it, each of the part that is marked around it."""
    base = told.get("baseTimeNanoseconds", 0)
    complete = [event for event in told["traceEvents"] if event["ph"] == "X" and event.get("cat") != "Trace"]
    complete.sort(key=lambda event: (str(event["tid"]), event["ts"], -event["dur"]))
    found, thread, part, until = [], None, None, 0
    for event in complete:
        start = base + round(event["ts"] * 1000)
        duration = round(event["dur"] * 1000)
        if event["tid"] != thread or start >= until:
            thread, part, until = event["tid"], None, 0
        if event.get("cat") == "user_annotation":
            part, until = event["name"], start + duration
        shapes = event.get("args", {}).get("Input Dims")
        found.append({
            "name": event["name"], "part": part, "thread": f"thread {event['tid']}", "start_ns": start,
            "duration_ns": duration, "details": {"input shapes": json.dumps(shapes)} if shapes else {},
        })
    return found

"""Hugging Face transformers on PyTorch, as `generate` drives a model: eager with a `DynamicCache`, or, with the option
`compile`, prompts and decode steps through the model's own `get_compiled_call` with a `StaticCache`. (`generate` compiles
its decode steps alone.)

An encoder is driven as sentence-transformers drives it: texts padded to the longest of their batch, with a mask. One with
a head is the class that its configuration names, whose body gives vectors. With the option `compile`, PyTorch compiles it
for any shape.

A model that attends both ways is a decoder whose configuration says `is_causal: false`, passed without a cache.

Of a model that hears, the encoder is called alone, as `generate` does, and its vectors are given to each pass of the
decoder, whose first one puts their keys and values into the cache. With the option `compile` both are compiled."""

import copy
import inspect
import os

# Models are prepared bundles; nothing is to be looked for elsewhere.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from transformers import (
    AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification, AutoModelForSpeechSeq2Seq,
    AutoModelForTokenClassification, CompileConfig, DynamicCache, EncoderDecoderCache, StaticCache,
)

from .. import checkpoint, gpus, kernel_cache
from ..bundle import WorkerError, bad_input, unsupported
from ..torch_profile import Profile
from . import Base

# What torch.compile finds of earlier processes, before it compiles.
KEPT = kernel_cache.found("TORCHINDUCTOR_CACHE_DIR")
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


class Adapter(Base):
    FRAMEWORK = "transformers"
    FEATURES = ENCODER_FEATURES = None
    OPTIONS = ("attention", "compile", "memory_fraction")
    HIDDEN_STATES = True
    BOTH_WAYS = True
    ENCODES = True
    HEARS = True
    GPU = True
    # For good: nothing here ever needs a gradient. It holds as long as the guard is referred to.
    _inference_mode = None

    @staticmethod
    def runtime():
        return {
            "binding": f"transformers {transformers.__version__}", "library": f"PyTorch {torch.__version__}",
            "library_path": torch._C.__file__, "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        }

    @classmethod
    def weights_file(cls, bundle, settings):
        if settings["precision"] not in DTYPES:
            raise unsupported(f"transformers reads no {settings['precision']} weights of this form")
        if settings.get("hidden_states") and compiles(settings):
            raise unsupported("a compiled pass of transformers keeps no hidden states: name transformers, which is not compiled")
        return checkpoint.weights_file(bundle, settings["precision"])

    def __init__(self, bundle, settings, weights_file):
        torch.set_num_threads(settings["threads"])
        if Adapter._inference_mode is None:
            torch.set_num_interop_threads(1)
            Adapter._inference_mode = torch.inference_mode()
            Adapter._inference_mode.__enter__()
        self._dtype = DTYPES[settings["precision"]]
        directory = checkpoint.checkpoint(bundle, weights_file, settings["precision"])
        self._device, fraction = torch.device(settings["device"]), gpus.memory_fraction(settings)
        if fraction is not None:
            torch.cuda.set_per_process_memory_fraction(fraction, self._device)
        self._encoder, self._audio = bundle.encoder, bundle.audio
        attention = attention_of(settings.get("options", {}))
        self._model = loaded(directory, bundle, self._dtype, attention).eval().to(self._device)
        if self._device.type == "cuda":
            # Copies are part of loading.
            torch.cuda.synchronize(self._device)
        # Whether keys and values are kept from one step to the next.
        self._cached = bundle.causal and not self._encoder
        if self._encoder:
            # A decoder that encodes would make a cache with every pass.
            self._model.config.use_cache = False
        if not bundle.causal and not self._encoder:
            # Then no mask is made. The attention asks the layers, or is told with each call.
            self._model.config.is_causal = False
        if not bundle.causal and self._encoder:
            # Without padding no mask is made, and the layers of a decoder would be asked.
            for layer in self._model.modules():
                if hasattr(layer, "is_causal"):
                    layer.is_causal = False
        self._compiled = compiles(settings)
        # The library's own `output_hidden_states`, asked for with each call.
        self._kept = {"output_hidden_states": True} if settings.get("hidden_states") else {}
        self._hidden, self._lengths = (), None
        self._call, self._graphs, self._words = self._model, lambda: 0, []
        self._body = self._model.base_model
        if self._compiled:
            # PyTorch has loaded it by now.
            from torch._dynamo.utils import counters

            self._graphs = lambda: counters["stats"]["unique_graphs"]
        if self._compiled and self._encoder:
            # For texts of any length. What cannot be compiled whole is an error rather than eager.
            compiled = (torch.compile(part, dynamic=True, fullgraph=True) for part in (self._model, self._body))
            self._call, self._body = compiled
        elif self._compiled:
            # By generate's own means. Its default compiles for the first shape, and for all others when a second one comes.
            self._call = self._model.get_compiled_call(CompileConfig(fullgraph=True))
            self._heads = bundle.model["kv_heads"], bundle.model["head_dim"]
        if self._audio:
            encoder = self._model.get_encoder()
            self._encode = torch.compile(encoder, fullgraph=True) if self._compiled else encoder
            self._heard = None
        self._cache, self._room = None, None

    def in_effect(self):
        dtype = next(self._model.parameters()).dtype
        name = next(name for name, known in DTYPES.items() if known == dtype)
        attention = self._model.config._attn_implementation
        return {
            "precision": name, "activations": name, "kv_cache_precision": name,
            "kv_cache": "none" if not self._cached else "preallocated" if self._compiled else "growing",
            "device": str(self._model.device), "threads": torch.get_num_threads(),
            "jit": self._jit() if self._compiled else "eager",
            "optimised": self._compiled, "weight_storage": "as from_pretrained loads them",
            "kernels": [f"{self._products()} by PyTorch's choice", f"attention: {attention}"]
            + (["texts padded to the longest of a batch"] if self._encoder else [])
            + ([KEPT] if self._compiled else []) + self._pool(),
            "changed_defaults": ["one thread between operators: the thread budget is for those within"],
        }

    def _pool(self):
        if self._device.type != "cuda":
            return []
        return [f"pool: {torch.cuda.get_per_process_memory_fraction(self._device):.2f} of the GPU's memory at most"]

    def _products(self):
        return "cuBLAS" if self._device.type == "cuda" else "oneDNN or MKL"

    def _jit(self):
        return f"torch.compile (inductor) of {'prompts and decode steps' if self._cached else 'a whole pass'}"

    def begin(self, batch, capacity):
        if not self._cached:
            return
        if self._compiled and self._room == (batch, capacity):
            self._cache.reset()
        elif self._audio:
            positions = self._audio["frames"] // 2
            self._cache = EncoderDecoderCache(self._made(batch, capacity), self._made(batch, positions))
        else:
            self._cache = self._made(batch, capacity)
        self._room, self._filled = (batch, capacity), 0

    def _made(self, batch, capacity):
        """A cache of the decoder's layers, with room where it is compiled for."""
        config = self._model.config
        if self._audio:
            # It says how many layers the encoder has.
            config = copy.copy(config)
            config.num_hidden_layers = config.decoder_layers
        if not self._compiled:
            return DynamicCache(config=config)
        cache = StaticCache(config=config, max_cache_len=capacity)
        # Else making it would be compiled into the first pass, and the same pass once more without.
        cache.early_initialization(batch, *self._heads, self._dtype, self._device)
        return cache

    def listen(self, frames):
        frames = torch.frombuffer(frames, dtype=torch.float32).view(1, self._audio["bands"], -1)
        graphs = self._graphs()
        self._heard = self._encode(frames.to(self._device, self._dtype))
        if self._graphs() > graphs:
            self._words.append(f"the encoder of {self._audio['frames']} frames")
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def append(self, tokens, every):
        ids = torch.tensor(tokens, device=self._device)
        count, call = ids.shape[1], self._call
        if self._audio:
            inputs = {"decoder_input_ids": ids, "encoder_outputs": self._heard}
        else:
            # The logits of the only position are those of every position: no second graph for them.
            inputs = {"input_ids": ids, "logits_to_keep": 0 if every and count > 1 else 1}
        if self._cached:
            positions = torch.arange(self._filled, self._filled + count, device=self._device).unsqueeze(0)
            inputs["decoder_position_ids" if self._audio else "position_ids"] = positions
            inputs |= {"past_key_values": self._cache, "use_cache": True}
            if every and count > 1:
                # Parity alone asks for these, untimed, and would wait for a graph of their own.
                call = self._model
        else:
            inputs |= {"use_cache": False, "is_causal": False}
        graphs = self._graphs()
        found = call(**inputs, **self._kept)
        self._hidden = found.decoder_hidden_states if self._audio else found.hidden_states
        if self._graphs() > graphs:
            self._words.append(self._pass(ids.shape, every))
        if self._cached:
            self._filled += count
        # Waits for a GPU; where they are on the host, it is they. A model that hears gives those of every position.
        return (found.logits if every else found.logits[:, -1:]).cpu()

    def encode(self, texts, types, embed):
        self._lengths = list(map(len, texts))
        longest, pad = max(self._lengths), self._encoder["pad_token"]
        padded = [text + [pad] * (longest - len(text)) for text in texts]
        mask = torch.tensor([[1] * len(text) + [0] * (longest - len(text)) for text in texts], device=self._device)
        inputs = {"input_ids": torch.tensor(padded, device=self._device), "attention_mask": mask}
        if self._encoder["token_types"] > 1:
            # As a tokenizer gives them, of a single text too: with and without them, passes are compiled apart.
            typed = [row + [0] * (longest - len(row)) for row in types or [[0] * longest] * len(texts)]
            inputs["token_type_ids"] = torch.tensor(typed, device=self._device)
        if first := self._encoder["first_position"]:
            # Else they are counted by where the padding token is, which a text may have inside.
            positions = torch.arange(first, first + longest, device=self._device)
            inputs["position_ids"] = positions.expand(len(texts), -1)
        graphs = self._graphs()
        vectors = self._scores(inputs) if embed is None else self._vectors(inputs, **embed)
        if self._graphs() > graphs:
            self._words.append(f"{'scores' if embed is None else 'vectors'} of {len(texts)} texts, {longest} positions each")
        # Waits for a GPU; where they are on the host, it is they.
        vectors = vectors.float().cpu()
        if embed and embed["pooling"] == "each":
            vectors = [states[: len(text)].flatten() for states, text in zip(vectors, texts)]
        if embed is None and self._encoder["head"]["of"] == "tokens":
            vectors = [scores[: len(text)].flatten() for scores, text in zip(vectors, texts)]
        return vectors, len(texts) * longest

    def _vectors(self, inputs, pooling, normalise):
        found = self._body(**inputs, **self._kept)
        states, self._hidden = found.last_hidden_state, found.hidden_states
        if pooling == "each":
            return states
        vectors = pooled(states, inputs["attention_mask"], pooling)
        return torch.nn.functional.normalize(vectors, dim=1) if normalise else vectors

    def _scores(self, inputs):
        if self._encoder["head"]["of"] != {"texts": "last"}:
            return self._call(**inputs).logits
        # The class looks for the last token by the padding token, which a text may end with and a model may not have.
        return self._model.score(self._vectors(inputs, "last", False))

    def hidden_states(self):
        return [self._own(state).contiguous().float().cpu().numpy().tobytes() for state in self._hidden]

    def _own(self, state):
        """The positions of tokens: of texts one behind the other, without padding."""
        if self._encoder is None:
            return state
        return torch.cat([text[:length] for text, length in zip(state, self._lengths)])

    def rows(self, vectors):
        return [vector.tolist() for vector in vectors]

    def _pass(self, shape, every):
        """What was compiled for, in words."""
        batch, count = shape
        if not self._cached:
            return f"a pass over {count} positions, batch {batch}{', logits of every position' if every else ''}"
        # The first pass behind audio has its keys and values to compute.
        is_step = count == 1 and (self._filled or not self._audio)
        kind = "decode" if is_step else f"{'append' if self._filled else 'prefill'} of {count} tokens"
        return f"{kind}, batch {batch}, cache of {self._room[1]}"

    def compiled(self):
        return list(self._words) if self._compiled else None

    def argmax(self, logits):
        return logits[:, -1].argmax(dim=-1).tolist()

    def gpu_allocated(self):
        if self._device.type != "cuda":
            return None
        return {
            "in_use_bytes": torch.cuda.memory_allocated(self._device),
            "peak_bytes": torch.cuda.max_memory_allocated(self._device),
        }

    def begin_profile(self, directory):
        self._profile = Profile(self._model, not self._compiled), directory

    def end_profile(self):
        profile, directory = self._profile
        return profile.end(directory)

    def array(self, logits):
        return logits.float().numpy()

    def values(self, logits):
        return self.array(logits).tobytes()


def compiles(settings):
    return settings.get("options", {}).get("compile") == "true" and settings["jit"]


def attention_of(options):
    """What `attn_implementation` is: left to the library, which takes SDPA where a model has it, or `eager`."""
    chosen = options.get("attention")
    if chosen not in (None, "eager"):
        raise bad_input(f"option attention is {chosen!r}, not eager")
    return {"attn_implementation": chosen} if chosen else {}


def loaded(directory, bundle, dtype, attention):
    """The model, with the head that an encoder has. Refused where transformers would make up weights."""
    given, encoder = dict(attention), bundle.encoder
    if not encoder:
        kind = AutoModelForSpeechSeq2Seq if bundle.audio else AutoModelForCausalLM
    elif head := encoder.get("head"):
        kind = AutoModelForTokenClassification if head["of"] == "tokens" else AutoModelForSequenceClassification
    else:
        kind = AutoModel
        model = AutoModel._model_mapping[type(AutoConfig.from_pretrained(directory))]
        if "add_pooling_layer" in inspect.signature(model.__init__).parameters:
            # What a pooler would give is no part of a vector, and its weights are not in the bundle.
            given["add_pooling_layer"] = False
    model, told = kind.from_pretrained(directory, dtype=dtype, output_loading_info=True, **given)
    if missing := sorted(told["missing_keys"]):
        raise WorkerError(f"transformers would make up {len(missing)} weights that the bundle lacks, such as {missing[0]}")
    return model


def pooled(states, mask, pooling):
    """The vector of each text from those of its tokens, as sentence-transformers has it."""
    if pooling == "cls":
        return states[:, 0]
    if pooling == "last":
        return states[torch.arange(len(states), device=states.device), mask.sum(dim=1) - 1]
    wide = mask.unsqueeze(-1).expand(states.size())
    if pooling == "max":
        return states.masked_fill(wide == 0, torch.finfo(states.dtype).min).max(dim=1).values
    wide = wide.to(states.dtype)
    return (states * wide).sum(dim=1) / wide.sum(dim=1).clamp(min=1e-9)

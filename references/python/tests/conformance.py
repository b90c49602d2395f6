"""Holds an adapter to what an independent implementation computed, as crate `conformance` holds the engines.

    conformance.py ADAPTER BUNDLE DESCRIPTION.json FIXTURE [BUNDLE DESCRIPTION.json FIXTURE ...]

A fixture is a directory of `crates/conformance/fixtures/tiny`, `…/diffusion`, `…/encoders` or `…/speech`, a bundle
what `prepare` made of it, a description what a job says of the model (docs/reference/protocol.md). One line a model:
`ok` with the largest error of each check, or what failed, and exit code 1. It needs what the adapter needs, and numpy.
"""

import argparse
import copy
import importlib
import io
import json
import sys
import tempfile
from array import array as array_of_floats
from pathlib import Path

import numpy

sys.path.insert(0, str(Path(__file__).parent.parent))

from reference_worker import serve
from reference_worker.work import denoise
from reference_worker.bundle import Bundle, WorkerError
from reference_worker.weights import Weights

# As in crate `conformance`: some hundred times what the order of summation does, far below a wrong operation.
TOLERANCES = {"f32": 2e-4, "f16": 2e-2, "bf16": 1e-1}


class Broken(Exception):
    """The rule that does not hold."""


class Reference:
    """`tokens` [2, T], `logits` [2, T, vocabulary], `hidden` [layers + 1][2, T, hidden]; `greedy` after row 0, or, of masked
    diffusion, `prompt`, how it is denoised, and `states` [steps][prompt and new tokens] by algorithm. `frames`
    [2, bands, frames] of a model that hears."""

    def __init__(self, fixture):
        file = Weights(Path(fixture) / "reference.safetensors")
        self.tokens, self.logits = file.tensor("input_ids").tolist(), file.tensor("logits")
        self.batch, self.positions, self.vocabulary = self.logits.shape
        self.greedy = file.tensor("greedy").reshape(-1).tolist() if file.holds("greedy") else []
        self.states = {
            name: file.tensor(f"states.{name}").tolist() for name in denoise.ALGORITHMS if file.holds(f"states.{name}")
        }
        if self.states:
            self.prompt, told = file.tensor("prompt").tolist(), file.metadata
            self.new_tokens, self.mask = int(told["new_tokens"]), int(told["mask_token_id"])
            self.denoise = {"steps": int(told["steps"]), "eps": float(told["eps"])}
        config = json.loads((Path(fixture) / "config.json").read_text())
        layers = config.get("num_hidden_layers") or config.get("n_layer") or config["decoder_layers"]
        self.hidden = [file.tensor(f"hidden.{layer}") for layer in range(layers + 1)]
        self.frames = file.tensor("frames") if file.holds("frames") else None

    def alone(self, sequence):
        """One of the sequences."""
        one, rows = copy.copy(self), slice(sequence, sequence + 1)
        one.tokens, one.logits, one.frames, one.batch = self.tokens[rows], self.logits[rows], self.frames[rows], 1
        one.hidden = [states[rows] for states in self.hidden]
        return one


class Texts:
    """`texts` and `types` [N] of several lengths, the vectors [N, hidden] of each way of pooling, and of a model with a head
    the scores [N] of texts, or of all tokens of each."""

    #: Name of the vectors, pooling, and whether they are normalised.
    POOLED = (
        ("pooled.cls", "cls", False), ("pooled.mean", "mean", False), ("pooled.last", "last", False),
        ("pooled.mean.normalised", "mean", True),
    )

    def __init__(self, fixture, encoder):
        file = Weights(Path(fixture) / "reference.safetensors")
        lengths = file.tensor("lengths").tolist()
        rows = lambda name: [row[:length] for row, length in zip(file.tensor(name).tolist(), lengths)]
        self.texts, self.types, texts = rows("input_ids"), rows("token_type_ids"), range(len(lengths))
        self.vectors = {
            name: ({"embed": {"pooling": pooling, "normalise": normalise}}, file.tensor(name))
            for name, pooling, normalise in self.POOLED
        }
        self.last = [file.tensor(f"last_hidden.{text}") for text in texts if file.holds(f"last_hidden.{text}")]
        if self.last:
            largest = [last.max(axis=0) for last in self.last]
            self.vectors["largest"] = {"embed": {"pooling": "max", "normalise": False}}, largest
        if head := encoder.get("head"):
            of_tokens = head["of"] == "tokens"
            scores = [file.tensor(f"token_logits.{text}") for text in texts] if of_tokens else file.tensor("logits")
            self.vectors["scores"] = "score", scores


class Conformance:
    """The checks of one adapter on one model; `errors` has the largest of each."""

    POLICIES = ("preallocated", "growing", "recomputed")

    def __init__(self, adapter_class, bundle, reference, settings):
        self.adapter_class, self.bundle, self.reference, self.settings = adapter_class, bundle, reference, settings
        self.adapter = adapter_class(bundle, settings, adapter_class.weights_file(bundle, settings))
        self.errors = {}

    def check(self):
        self.what_is_in_effect_is_what_was_asked_for()
        self.the_whole_sequence_at_once()
        if self.settings["hidden_states"]:
            self.hidden_states()
        self.last_position_alone()
        for piece, batch in [(1, 1), (1, 2), (5, 1), (self.reference.positions // 2, 2)]:
            self.in_pieces(piece, batch)
        self.another_batch()
        if self.settings["precision"] == "f32":
            # In 16 bits, the most likely of two tokens that are nearly equal may be the other one.
            self.greedy()
        # After all of that, in room that it has had before.
        self.the_whole_sequence_at_once("begun again")
        self.each_shape_is_compiled_once()
        self.bad_input_is_refused()
        self.the_profiler_tells_each_layer()

    def begin(self, batch, capacity, adapter=None):
        (adapter or self.adapter).begin(batch, capacity)

    def what_is_in_effect_is_what_was_asked_for(self):
        told = self.adapter.in_effect()
        for name in ("precision", "threads", "device"):
            require(told[name] == self.settings[name], f"{name} in effect is {told[name]}, not {self.settings[name]}")
        require(told["kv_cache"] in self.POLICIES, f"kv_cache is {told['kv_cache']}")
        require(told["optimised"] in (None, True, False), f"optimised is {told['optimised']}")
        shards = self.settings["shards"]
        if shards > 1:
            held = told.get("shard_bytes") or []
            require(len(held) == shards and min(held) > 0, f"shard_bytes of {shards} devices are {held}")

    def the_whole_sequence_at_once(self, name="whole"):
        self.begin(self.reference.batch, self.reference.positions)
        self.compare(name, self.logits(self.reference.tokens, True), self.reference.logits)

    def hidden_states(self):
        """Of the last append: here of the second half, whose first half was a step before."""
        reference, half = self.reference, self.reference.positions // 2
        for name, start in (("hidden", 0), ("hidden of a part", half)):
            self.begin(reference.batch, reference.positions)
            if start:
                self.adapter.append([row[:start] for row in reference.tokens], False)
            self.adapter.append([row[start:] for row in reference.tokens], False)
            states = self.adapter.hidden_states()
            require(len(states) == len(reference.hidden), f"{len(states)} hidden states, not {len(reference.hidden)}")
            for layer, (state, theirs) in enumerate(zip(states, reference.hidden)):
                theirs = theirs[:, start:]
                self.compare(name, array(state, theirs.shape), theirs, f"hidden.{layer}")

    def last_position_alone(self):
        self.begin(self.reference.batch, self.reference.positions)
        self.compare("last", self.logits(self.reference.tokens, False), self.reference.logits[:, -1:])

    def in_pieces(self, piece, batch):
        reference = self.reference
        self.begin(batch, reference.positions)
        for start in range(0, reference.positions, piece):
            end = min(start + piece, reference.positions)
            logits = self.logits([row[start:end] for row in reference.tokens[:batch]], True)
            where = f"pieces of {piece}, batch {batch}, positions {start}..{end}"
            self.compare(f"pieces of {piece}", logits, reference.logits[:batch, start:end], where)

    def another_batch(self):
        """Four prompts cut from the two rows, those from the end being other sequences: what each gives alone."""
        length = self.reference.positions // 2
        prompts = [row[start : start + length] for start in (0, length) for row in self.reference.tokens]
        self.begin(4, length)
        together = self.logits(prompts, True)
        for index, prompt in enumerate(prompts):
            self.begin(1, length)
            alone = self.logits([prompt], True)
            self.compare("batch of 4", together[index : index + 1], alone, f"sequence {index} of a batch of 4")

    def greedy(self):
        reference = self.reference
        count = min(len(reference.greedy), self.bundle.context - reference.positions)
        self.begin(1, reference.positions + count)
        step = [reference.tokens[0]]
        for index, expected in enumerate(reference.greedy[:count]):
            token = self.adapter.argmax(self.adapter.append(step, False))
            require(token == [expected], f"greedy token {index} is {token}, not {[expected]}")
            step = [token]

    def each_shape_is_compiled_once(self):
        compiled = self.adapter.compiled()
        if compiled is not None:
            require(all(isinstance(shape, str) for shape in compiled), f"compiled shapes are phrases, not {compiled}")
            twice = {shape for shape in compiled if compiled.count(shape) > 1}
            require(not twice, f"compiled twice: {sorted(twice)}")

    def the_profiler_tells_each_layer(self):
        """In a prefill and in a decode step. What has no profiler says so."""
        settings = self.adapter_class.profiled(self.settings)
        adapter = self.adapter
        if settings != self.settings:
            adapter = self.adapter_class(self.bundle, settings, self.adapter_class.weights_file(self.bundle, settings))
        with tempfile.TemporaryDirectory() as directory:
            try:
                adapter.begin_profile(Path(directory))
            except WorkerError as error:
                require(error.kind == "unsupported", f"it has no profiler and says so as {error.kind}: {error}")
                return
            self.begin(1, 4, adapter)
            adapter.append([[1, 2, 3]], False)
            adapter.append([[4]], False)
            profile = adapter.end_profile()
        require(profile["clock"] in ("CLOCK_REALTIME", "CLOCK_MONOTONIC", "none"), f"clock is {profile['clock']}")
        starts = {}
        for event in profile["events"]:
            start = event["step" if profile["clock"] == "none" else "start_ns"]
            starts.setdefault(event["part"], set()).add(start)
        is_told = self.settings["jit"] and not any("the part of the model is not known" in note for note in profile["notes"])
        layers = range(len(self.bundle.model["layers"])) if is_told else ()
        for part in [f"layer {layer} {part}" for layer in layers for part in ("attention", "mlp")]:
            told = starts.get(part, ())
            require(len(told) > 1, f"the profiler tells {part} {len(told)} times; it was computed in two steps")

    def what_no_model_has_is_refused(self):
        self.refused("a precision that the bundle lacks", {"kind": "load"}, precision="int8")
        self.refused("an unknown option", {"kind": "load"}, options={"no such option": "1"})

    def bad_input_is_refused(self):
        score = lambda rows: {"kind": "score", "sequences": rows, "file": "/dev/null"}
        self.refused("a token outside the vocabulary", score([[self.reference.vocabulary]]))
        self.refused("more tokens than the context", score([[1] * (self.bundle.context + 1)]))
        self.refused("sequences of several lengths", score([[1, 2], [1]]))
        self.what_no_model_has_is_refused()

    def refused(self, what, task, **changes):
        try:
            self.events(task, **changes)
        except WorkerError as error:
            require(error.kind in ("input", "unsupported"), f"{what} is refused as {error.kind}: {error}")
            return
        raise Broken(f"{what} is not refused")

    def events(self, task, turns=(), **changes):
        """What a worker with this adapter answers."""
        settings = {**self.settings, **changes}
        job = {"protocol": serve.VERSION, "bundle": str(self.bundle.directory), "model": self.bundle.model}
        job |= {"settings": settings, "task": task}
        lines, output = "".join(serve.line(value) for value in (job, *turns)), io.StringIO()
        serve.serve(lambda: self.adapter_class, io.BytesIO(lines.encode()), 0, output)
        return [json.loads(line) for line in output.getvalue().splitlines()]

    def logits(self, tokens, every):
        shape = (len(tokens), len(tokens[0]) if every else 1, self.reference.vocabulary)
        return array(self.adapter.values(self.adapter.append(tokens, every)), shape)

    def compare(self, name, ours, theirs, where=None):
        error = float(numpy.abs(ours - theirs).max())
        limit = TOLERANCES[self.settings["precision"]]
        require(error <= limit, f"{where or name}: differs by {error:.2g}, more than {limit:g}")
        self.errors[name] = max(error, self.errors.get(name, 0.0))


class BothWays(Conformance):
    """The checks on a model of masked diffusion, which attends both ways."""

    POLICIES = ("none",)

    def check(self):
        self.what_is_in_effect_is_what_was_asked_for()
        self.the_whole_sequence_at_once()
        if self.settings["hidden_states"]:
            self.hidden_states_of_a_pass()
        self.last_position_alone()
        self.each_sequence_alone()
        for algorithm in self.reference.states:
            self.states(algorithm)
        # After all of that, in room that it has had before.
        self.the_whole_sequence_at_once("begun again")
        self.each_shape_is_compiled_once()
        self.bad_input_is_refused()
        self.what_is_not_denoising_is_refused()

    def hidden_states_of_a_pass(self):
        reference = self.reference
        self.adapter.begin(reference.batch, reference.positions)
        self.adapter.append(reference.tokens, False)
        states = self.adapter.hidden_states()
        require(len(states) == len(reference.hidden), f"{len(states)} hidden states, not {len(reference.hidden)}")
        for layer, (state, theirs) in enumerate(zip(states, reference.hidden)):
            self.compare("hidden", array(state, theirs.shape), theirs, f"hidden.{layer}")

    def each_sequence_alone(self):
        for sequence, row in enumerate(self.reference.tokens):
            self.adapter.begin(1, self.reference.positions)
            theirs = self.reference.logits[sequence : sequence + 1]
            self.compare("alone", self.logits([row], True), theirs, f"sequence {sequence} alone")

    def states(self, algorithm):
        """Of a job that generates, and of one that is fed the states: exactly the reference's. Parity's logits along them
        have the tokens as their most likely ones."""
        reference = self.reference
        denoising = {**reference.denoise, "algorithm": algorithm}
        case = {"prompts": [reference.prompt]}
        work = {"kind": "denoise", "cases": [case], "new_tokens": reference.new_tokens, "forced": False, "how": denoising}
        with tempfile.TemporaryDirectory() as directory:
            file = str(Path(directory) / "parity.safetensors")
            events = self.events({"kind": "answer", "work": work, "parity": {"steps": 1, "file": file}})
            answered = next(event for event in events if event["event"] == "answered")["outputs"][0]["steps"]
            trace, unmasked = answered["tokens"], answered["unmasked"]
            theirs = reference.states[algorithm]
            for step, state in enumerate(theirs):
                shown = [token if at <= step else reference.mask for token, at in zip(trace[0], unmasked[0])]
                require(reference.prompt + shown == state, f"{algorithm}, state after step {step}: {shown}")
            rows = Weights(file).tensor("case.0")
            require(rows.shape == (1, 1 + reference.new_tokens, reference.vocabulary), f"parity's logits are {rows.shape}")
            require(rows[0, :-1].argmax(axis=1).tolist() == trace[0], f"{algorithm}: parity's logits are of other tokens")
        work |= {"cases": [{**case, "trace": trace, "unmasked": unmasked}], "forced": True}
        limits = {"min_iterations": 1, "max_iterations": 1, "max_ns": 10**9, "settled_within": 0.05}
        measure = {"kind": "measure", "work": work, "warmup": limits}
        events = self.events(measure, [{"turn": "request", "case": 0}, {"turn": "finish"}])
        sample = next(event for event in events if event["event"] == "sample")
        steps = sample["output"]["steps"]
        require((steps["tokens"], steps["unmasked"]) == (trace, unmasked), f"{algorithm}: fed its states, it leaves them")
        require(len(steps["passes_ns"]) == len(sample["marks_ns"]) == len(theirs), "a step has no times of its own")

    def what_is_not_denoising_is_refused(self):
        score = {"kind": "score", "sequences": [[1, 2]], "piece": 1, "file": "/dev/null"}
        self.refused("a sequence in pieces", score)
        asked = {"cases": [{"prompts": [[1]]}], "new_tokens": 1}
        generate = {"kind": "generate", **asked, "decode": "greedy", "kv_cache": "on"}
        self.refused("generating token by token", {"kind": "answer", "work": generate})
        drawn = {"kind": "denoise", **asked, "forced": False, "how": {**self.reference.denoise, "algorithm": "origin"}}
        self.refused("what draws random numbers", {"kind": "answer", "work": drawn})


class Hears(Conformance):
    """The checks on a model that hears: one sequence at a time, behind its own audio."""

    def check(self):
        self.what_is_in_effect_is_what_was_asked_for()
        whole = self.reference
        for sequence in range(whole.batch):
            self.reference = whole.alone(sequence)
            self.the_whole_sequence_at_once()
            if self.settings["hidden_states"]:
                self.hidden_states()
            self.last_position_alone()
            for piece in (1, 5, self.reference.positions // 2):
                self.in_pieces(piece, 1)
        self.reference = whole.alone(0)
        if self.settings["precision"] == "f32":
            self.greedy()
        # After all of that, in room that it has had before.
        self.the_whole_sequence_at_once("begun again")
        with tempfile.TemporaryDirectory() as directory:
            # The last frames come first, and the turn puts them back.
            turn, audio = 5, [Path(directory) / f"frames.{sequence}" for sequence in range(whole.batch)]
            for file, frames in zip(audio, whole.frames):
                file.write_bytes(numpy.roll(frames, turn, axis=1).tobytes())
            self.audio = [{"file": str(file), "turn": turn} for file in audio]
            self.scores_of_all(whole, directory)
            if self.settings["precision"] == "f32":
                self.a_request(whole)
            self.bad_audio_is_refused()
        self.each_shape_is_compiled_once()
        self.the_profiler_tells_each_layer()

    def begin(self, batch, capacity, adapter=None):
        super().begin(batch, capacity, adapter)
        (adapter or self.adapter).listen(array_of_floats("f", self.reference.frames.tobytes()))

    def scores_of_all(self, whole, directory):
        file = str(Path(directory) / "scores.safetensors")
        self.events({"kind": "score", "sequences": whole.tokens, "audio": self.audio, "piece": 3, "file": file})
        found = Weights(file)
        self.compare("scores", found.tensor("logits"), whole.logits)
        if self.settings["hidden_states"]:
            self.compare("hidden of scores", found.tensor("hidden.1"), whole.hidden[1])

    def a_request(self, whole):
        """That is given the turn of its audio."""
        case = {"prompts": whole.tokens[:1], "trace": [whole.greedy], "audio": {**self.audio[0], "turn": 0}}
        limits = {"min_iterations": 1, "max_iterations": 1, "max_ns": 10**9, "settled_within": 0.05}
        work = {"kind": "generate", "cases": [case], "new_tokens": len(whole.greedy), "decode": "forced"}
        work["kv_cache"] = "on"
        asked = {"turn": "request", "case": 0, "input": {"continue": {"turn": self.audio[0]["turn"]}}}
        turns = [asked, {"turn": "finish"}]
        events = self.events({"kind": "measure", "work": work, "warmup": limits}, turns)
        sample = next(event for event in events if event["event"] == "sample")
        require(sample["output"]["tokens"] == [whole.greedy], f"a request is continued by {sample['output']['tokens']}")
        require(0 < sample["heard_ns"] < sample["marks_ns"][0], "audio is encoded before the first token")

    def bad_audio_is_refused(self):
        tokens = [[1, 2]]
        score = {"kind": "score", "sequences": tokens, "file": "/dev/null"}
        self.refused("tokens without audio", score)
        self.refused("audio that is not there", {**score, "audio": [{"file": "/no such file"}]})
        self.refused("audio of another size", {**score, "audio": [{"file": __file__}]})
        work = {"kind": "generate", "new_tokens": 1, "decode": "greedy", "kv_cache": "on"}
        case = {"prompts": tokens, "audio": self.audio[0]}
        answer = lambda **changes: {"kind": "answer", "work": {**work, "cases": [{**case, **changes}]}}
        self.refused("audio of two prompts", answer(prompts=tokens * 2))
        self.refused("audio behind a context", answer(context=tokens))
        self.refused("a prompt without audio", answer(audio=None))
        self.what_no_model_has_is_refused()


class Encodes(Conformance):
    """The checks on an encoder."""

    POLICIES = ("none",)

    def check(self):
        self.what_is_in_effect_is_what_was_asked_for()
        for name, (task, vectors) in self.reference.vectors.items():
            self.together_and_alone(name, task, vectors)
        if self.settings["hidden_states"]:
            self.hidden_states_of_texts()
        self.a_text_of_padding()
        self.texts_of_a_turn()
        self.each_shape_is_compiled_once()
        self.bad_texts_are_refused()

    def together_and_alone(self, name, task, vectors):
        texts, types = self.reference.texts, self.reference.types
        self.same(name, self.encoded(texts, types, task), vectors)
        for text, row in enumerate(texts):
            # Types that are left out are all 0.
            given = [types[text]] if any(types[text]) else None
            self.same(name, self.encoded([row], given, task), [vectors[text]], f"{name}, text {text} alone")

    def hidden_states_of_texts(self):
        """Of each layer, the texts one behind the other. Those of the last have each text's mean, and are what the model
        gives the text alone where the fixture has that."""
        size, texts = self.bundle.model["hidden_size"], self.reference.texts
        with tempfile.TemporaryDirectory() as directory:
            path = str(Path(directory) / "states.safetensors")
            self.events({"kind": "score", "sequences": texts, "types": self.reference.types, "file": path})
            file, layers = Weights(path), range(len(self.bundle.model["layers"]) + 1)
            states = [file.tensor(f"hidden.{layer}") for layer in layers]
            require(not file.holds("logits"), "an encoder has no logits")
        shape = (1, sum(map(len, texts)), size)
        require(all(state.shape == shape for state in states), f"hidden states are {states[-1].shape}, not {shape}")
        of_texts = numpy.split(states[-1][0], numpy.cumsum(list(map(len, texts)))[:-1])
        means = [state.mean(axis=0) for state in of_texts]
        self.same("means of hidden", means, self.reference.vectors["pooled.mean"][1])
        for state, alone in zip(of_texts, self.reference.last):
            self.compare("hidden", state, alone)

    def a_text_of_padding(self):
        """The padding token is a token like any other: what a text becomes does not depend on what is beside it."""
        pad, task = self.bundle.encoder["pad_token"], list(self.reference.vectors.values())[-1][0]
        short = [[pad] * 3, [pad, 2, pad]]
        alone = [self.encoded([text], None, task)[0] for text in short]
        together = self.encoded([*short, max(self.reference.texts, key=len)], None, task)
        self.same("padding", together[:2], alone)

    def encoded(self, texts, types, task):
        vectors, positions = self.adapter.encode(texts, types, None if task == "score" else task["embed"])
        require(positions >= sum(map(len, texts)), f"{positions} positions are fewer than those of the texts")
        return self.adapter.rows(vectors)

    def texts_of_a_turn(self):
        """A request that brings texts of its own encodes those, whatever its case has."""
        task, vectors = list(self.reference.vectors.values())[-1]
        texts, types = self.reference.texts, self.reference.types
        case = {"texts": [[1] * len(text) for text in texts], "types": types}
        limits = {"min_iterations": 1, "max_iterations": 1, "max_ns": 10**9, "settled_within": 0.05}
        work = {"kind": "encode", "cases": [case], "task": task}
        turns = [{"turn": "request", "case": 0, "input": {"texts": texts}}, {"turn": "finish"}]
        events = self.events({"kind": "measure", "work": work, "warmup": limits}, turns)
        sample = next(event for event in events if event["event"] == "sample")
        require(len(sample["marks_ns"]) == 1, "a request that encodes texts has one mark")
        self.same("a turn's texts", sample["output"]["vectors"]["vectors"], vectors)

    def bad_texts_are_refused(self):
        encode = lambda texts, task: {"kind": "answer", "work": {"kind": "encode", "cases": [{"texts": texts}], "task": task}}
        embed = {"embed": {"pooling": "mean", "normalise": False}}
        self.refused("no text", encode([], embed))
        self.refused("an empty text", encode([[]], embed))
        self.refused("a token outside the vocabulary", encode([[self.bundle.vocabulary]], embed))
        self.refused("more tokens than the context", encode([[1] * (self.bundle.context + 1)], embed))
        if not self.bundle.encoder.get("head"):
            self.refused("scores of a model without a head", encode([[1]], "score"))
        generate = {"cases": [{"prompts": [[1]]}], "new_tokens": 1, "decode": "greedy", "kv_cache": "on"}
        self.refused("continuing a text", {"kind": "answer", "work": {"kind": "generate", **generate}})
        self.refused("logits", {"kind": "score", "sequences": [[1]], "file": "/dev/null"}, hidden_states=False)
        self.what_no_model_has_is_refused()

    def same(self, name, found, expected, where=None):
        require(len(found) == len(expected), f"{where or name}: {len(found)} vectors, not {len(expected)}")
        for ours, theirs in zip(found, expected):
            ours, theirs = numpy.asarray(ours, numpy.float32), numpy.asarray(theirs, numpy.float32).reshape(-1)
            require(ours.shape == theirs.shape, f"{where or name}: {ours.shape} numbers, not {theirs.shape}")
            self.compare(name, ours, theirs, where)


def require(holds, otherwise):
    if not holds:
        raise Broken(otherwise)


def array(values, shape):
    found = numpy.frombuffer(values, numpy.float32)
    require(found.size == numpy.prod(shape), f"{found.size} numbers where {shape} are needed")
    return found.reshape(shape)


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("adapter", help="a module of reference_worker/adapters")
    parser.add_argument("models", nargs="+", help="BUNDLE DESCRIPTION.json FIXTURE, any number of times")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="an option of the variant")
    parser.add_argument("--precision", choices=TOLERANCES, default="f32", help="of a file that the bundle holds")
    parser.add_argument("--no-jit", action="store_true", help="settings.jit off")
    parser.add_argument("--no-hidden-states", action="store_true", help="of a variant that keeps none")
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args(arguments)
    if len(given.models) % 3:
        parser.error("name a bundle, a description and a fixture for each model")
    adapter_class = importlib.import_module(f"reference_worker.adapters.{given.adapter}").Adapter
    settings = {
        "precision": given.precision, "device": "cpu", "threads": given.threads, "shards": given.shards,
        "jit": not given.no_jit,
        "hidden_states": adapter_class.HIDDEN_STATES and not given.no_hidden_states,
        "options": dict(pair.split("=", 1) for pair in given.option),
    }
    adapter_class.configure(settings)
    adapter_class.runtime()
    failed = 0
    for directory, description, fixture in zip(*(iter(given.models),) * 3):
        name = Path(fixture).name
        try:
            bundle = Bundle(directory, json.loads(Path(description).read_text()))
            if bundle.encoder:
                checks, reference = Encodes, Texts(fixture, bundle.encoder)
            else:
                checks, reference = Conformance if bundle.causal else BothWays, Reference(fixture)
            if bundle.audio:
                checks = Hears
            conformance = checks(adapter_class, bundle, reference, settings)
            conformance.check()
            errors = ", ".join(f"{check} {error:.1e}" for check, error in conformance.errors.items())
            print(f"ok {name}: {errors}")
        except (Broken, WorkerError) as error:
            failed += 1
            print(f"FAILED {name}: {error}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

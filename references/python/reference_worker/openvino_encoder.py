"""An encoder as a graph of OpenVINO's own operations, without state: texts are padded to the longest of their batch.

Inputs, each i32 [batch, n]: `ids`; `tokens`, 1 for a token and 0 for padding; `meant`, 1 for each token that the vector
of its text is the mean of; `types`, where the model has a table of them. Outputs: `vectors` f32 [batch, hidden], those
means; `largest` f32 [batch, hidden], of each component over the tokens; of a model with a head `scores` f32, [batch,
labels] of `vectors`, or [batch, n, labels] of tokens.
"""

import math

import numpy
import openvino
from openvino import opset13 as ops

from .bundle import unsupported
from .openvino_graph import ACTIVATIONS, Graph, integer, integers, parameter, real

# What is added to the score of a key that a query does not see: far below every score, and finite in f16, too. A query
# of padding that sees nothing then has a mean of all keys, and not what is no number, which would spread to its text.
UNSEEN = -3e4


def built(model, weights, precision, named=False):
    """As `openvino_graph.built` has it."""
    return _Encoder(model, weights, precision, named).graph()


def asked(encoder, embed):
    """How texts are pooled, and the output to read. Heads of texts have their own way; those of tokens have none."""
    if embed and embed["pooling"] == "each":
        raise unsupported("the graph here gives pooled vectors, and not those of tokens, which this model's pooling needs")
    if embed:
        return embed["pooling"], "largest" if embed["pooling"] == "max" else "vectors"
    of = encoder["head"]["of"]
    return "mean" if of == "tokens" else of["texts"], "scores"


def inputs(texts, types, encoder, pooling):
    """What the graph takes of `[text][tokens]`, their types or None, for vectors that are pooled so."""
    longest = max(map(len, texts))
    shape = len(texts), longest
    arrays = {"ids": numpy.full(shape, encoder["pad_token"], numpy.int32), "tokens": numpy.zeros(shape, numpy.int32)}
    if encoder["token_types"]:
        arrays["types"] = numpy.zeros(shape, numpy.int32)
    arrays["meant"] = arrays["tokens"] if pooling in ("mean", "max") else numpy.zeros(shape, numpy.int32)
    for row, text in enumerate(texts):
        count = len(text)
        arrays["ids"][row, :count] = text
        arrays["tokens"][row, :count] = 1
        if pooling in ("cls", "last"):
            arrays["meant"][row, 0 if pooling == "cls" else count - 1] = 1
        if types and encoder["token_types"]:
            arrays["types"][row, :count] = types[row]
    return arrays


class _Encoder(Graph):
    def __init__(self, model, weights, precision, named):
        super().__init__(model, weights, precision, named)
        self._encoder, self._names = model["encoder"], model["tensors"]
        windows = [layer.get("window") for layer in model["layers"]]
        self._window, self._slides = next(filter(None, windows), None), [window is not None for window in windows]
        names = ["ids", "tokens", "meant", *(["types"] if self._encoder["token_types"] else [])]
        self._inputs = {name: parameter([-1, -1], name) for name in names}
        count = ops.gather(ops.shape_of(self._inputs["ids"], "i32"), integer(1), integer(0))
        self._positions = ops.range(integer(0), count, integer(1), "i32")
        # By whether a layer slides.
        self._masks = {slides: self._made_mask(slides) for slides in set(self._slides)}
        rotations = [self._cos_and_sin(each["inverse_frequencies"], self._positions) for each in model["rotations"]]
        places = [layer["rotation"] for layer in model["layers"]]
        self._rotations = [None if place is None else rotations[place] for place in places]
        # What all layers share is no part of one.
        for shared in (*self._masks.values(), *(part for rotation in rotations for part in rotation)):
            self._part(None, shared)

    def graph(self):
        names, state = self._names, self._part("embedding", self._embedded())
        for index, layer in enumerate(names["layers"]):
            state = self._layer(index, layer, state)
        if self._encoder["final_norm"]:
            state = self._part("final norm", self._norm(names["final_norm"], state))
        vectors = self._part("head", self._mean(state))
        outputs = {"vectors": vectors, "largest": self._part("head", self._largest(state))}
        if head := self._encoder.get("head"):
            scores = self._scores(head, state if head["of"] == "tokens" else vectors)
            outputs["scores"] = self._part("head", scores)
        results = [ops.result(value) for value in outputs.values()]
        for result, name in zip(results, outputs):
            result.get_output_tensor(0).set_names({name})
        return openvino.Model(results, list(self._inputs.values()), "encoder")

    def _embedded(self):
        names = self._names
        state = ops.gather(self._vector([names["embedding"]]), self._inputs["ids"], integer(0))
        if table := names["encoder"]["token_type_embedding"]:
            state = ops.add(state, ops.gather(self._vector([table]), self._inputs["types"], integer(0)))
        if table := names["position_embedding"]:
            rows = ops.add(self._positions, integer(self._encoder["first_position"]))
            state = ops.add(state, ops.gather(self._vector([table]), rows, integer(0)))
        norm = names["encoder"]["embedding_norm"]
        return self._norm(norm, state) if norm else state

    def _projected(self, names, state):
        """By a product each, where the model has them so: a batch is large enough for each, and nothing is copied out of
        one result."""
        if len(names["weights"]) == 1:
            return super()._projected(names, state)
        biases = [[name] for name in names["biases"]] or [[]] * len(names["weights"])
        each = zip(names["weights"], biases)
        return [self._linear({"weights": [weight], "biases": bias}, state) for weight, bias in each]

    def _rotation(self, index):
        return self._rotations[index]

    def _mask(self, index):
        return self._masks[self._slides[index]]

    def _kept(self, index, k, v):
        return k, v

    def _made_mask(self, slides):
        """f32 [batch, 1 or heads, 1 or n, n]: what is added to scores, for padding and by how far apart tokens are."""
        seen = ops.unsqueeze(ops.equal(self._inputs["tokens"], integer(1)), integers([1, 2]))
        # How far a key is behind a query: [n, n].
        apart = ops.subtract(ops.unsqueeze(self._positions, integer(0)), ops.unsqueeze(self._positions, integer(1)))
        if self._model["causal"]:
            seen = ops.logical_and(seen, ops.unsqueeze(ops.less_equal(apart, integer(0)), integers([0, 1])))
        if slides:
            near = ops.less(ops.abs(apart), integer(self._window))
            seen = ops.logical_and(seen, ops.unsqueeze(near, integers([0, 1])))
        mask = ops.select(seen, real(0.0), real(UNSEEN))
        table = self._names["encoder"]["relative_bias"]
        return ops.add(mask, self._relative(table, apart)) if table else mask

    def _relative(self, table, apart):
        """f32 [1, heads, n, n], looked up by distance."""
        last = self._model["max_positions"] - 1
        rows = buckets(self._encoder["relative"], numpy.arange(-last, last + 1))
        by_distance = ops.transpose(ops.gather(self._vector([table]), ops.constant(rows), integer(0)), integers([1, 0]))
        return ops.unsqueeze(ops.gather(by_distance, ops.add(apart, integer(last)), integer(1)), integer(0))

    def _mean(self, state):
        meant = ops.convert(self._inputs["meant"], "f32")
        sums = ops.squeeze(ops.matmul(ops.unsqueeze(meant, integer(1)), state, False, False), integer(1))
        return ops.divide(sums, ops.reduce_sum(meant, integers([1]), True))

    def _largest(self, state):
        is_token = ops.unsqueeze(ops.equal(self._inputs["tokens"], integer(1)), integer(2))
        return ops.reduce_max(ops.select(is_token, state, real(-numpy.inf)), integers([1]), False)

    def _scores(self, head, state):
        names = self._names["encoder"]["head"]
        if names["dense"]:
            activation = head["dense"]["activation"]
            name = activation if isinstance(activation, str) else activation["of"]
            state = ACTIVATIONS[name](self._linear(names["dense"], state))
        if names["norm"]:
            state = self._norm(names["norm"], state)
        return self._linear(names["scores"], state)


def buckets(relative, apart):
    """Rows of the table of relative positions: T5's formula, in f32 as PyTorch computes it. `apart` is how far keys are
    behind the query."""
    half = relative["buckets"] // 2
    exact, away = half // 2, numpy.abs(apart)
    share = numpy.log(numpy.maximum(away, 1).astype(numpy.float32) / numpy.float32(exact))
    share /= numpy.float32(math.log(relative["distance"] / exact))
    wide = numpy.minimum(exact + (share * numpy.float32(half - exact)).astype(numpy.int32), half - 1)
    return (numpy.where(apart > 0, half, 0) + numpy.where(away < exact, away, wide)).astype(numpy.int32)

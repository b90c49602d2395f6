"""Logits of given sequences, to a safetensors file: what parity is judged from."""

import json
import struct

from .bundle import WorkerError


from .work import heard


class Rows:
    """f32 `[batch, positions, width]`, filled by ranges of positions."""

    def __init__(self, batch, positions, width):
        self.shape = [batch, positions, width]
        self.bytes = bytearray(4 * batch * positions * width)

    def extend(self, other):
        """More sequences, behind these."""
        self.shape[0] += other.shape[0]
        self.bytes += other.bytes

    def put_row(self, sequence, position, values):
        """`values` are `[width]`."""
        _, positions, width = self.shape
        at = 4 * (sequence * positions + position) * width
        self.bytes[at : at + 4 * width] = values

    def put(self, start, end, values):
        """`values` are `[batch, end - start, width]`. What is of more sequences than these is left out."""
        batch, positions, width = self.shape
        length = 4 * (end - start) * width
        if len(values) < batch * length:
            raise WorkerError(f"{len(values)} bytes of logits where {batch * length} were asked for")
        for sequence in range(batch):
            at = 4 * (sequence * positions + start) * width
            self.bytes[at : at + length] = values[sequence * length : (sequence + 1) * length]

    def put_kept(self, start, end, kept, values):
        """`values` are `[batch, end - start, width]`; of each sequence they are kept from another position on."""
        _, positions, width = self.shape
        row = 4 * width
        for sequence, first in enumerate(kept):
            begin, stop = max(start, first), min(end, first + positions)
            if begin < stop:
                at = (sequence * (end - start) + begin - start) * row
                to = (sequence * positions + begin - first) * row
                size = (stop - begin) * row
                self.bytes[to : to + size] = values[at : at + size]


def score(adapter, task, bundle, hidden_states):
    if bundle.encoder:
        return score_texts(adapter, task, bundle)
    sequences, tensors = task["sequences"], {}
    kept = task.get("kept") or {"from": [0] * len(sequences), "count": len(sequences[0])}
    # With audio, one by one.
    audio = bundle.audio and heard.Audio(bundle.audio)
    group = 1 if audio else len(sequences)
    for place in range(0, len(sequences), group):
        adapter.begin(group, len(sequences[0]))
        if audio:
            adapter.listen(audio.frames(task["audio"][place]))
        of_group = sequences[place : place + group], kept["from"][place : place + group], kept["count"]
        for name, rows in scored(adapter, of_group, task.get("piece"), bundle, hidden_states).items():
            tensors[name].extend(rows) if place else tensors.update({name: rows})
    write(tensors, task["file"])


def scored(adapter, group, piece, bundle, hidden_states):
    sequences, froms, count = group
    batch, positions = len(sequences), len(sequences[0])
    piece, first = piece or positions, min(froms)
    tensors = {"logits": Rows(batch, count, bundle.vocabulary)}
    if hidden_states:
        size, layers = bundle.model["hidden_size"], len(bundle.model["layers"])
        tensors |= {f"hidden.{layer}": Rows(batch, positions, size) for layer in range(layers + 1)}
    start = 0
    while start < positions:
        # Before the first that is kept, logits are not computed.
        end = min(start + piece, first if start < first else positions)
        tokens = [sequence[start:end] for sequence in sequences]
        if end <= first:
            adapter.append(tokens, False)
        else:
            tensors["logits"].put_kept(start, end, froms, adapter.values(adapter.append(tokens, True)))
        if hidden_states:
            for layer, values in enumerate(adapter.hidden_states()):
                tensors[f"hidden.{layer}"].put(start, end, values)
        start = end
    return tensors


def score_texts(adapter, task, bundle):
    """Hidden states of texts, one behind the other, as one sequence; an encoder has no logits."""
    texts, size = task["sequences"], bundle.model["hidden_size"]
    # They are the same whatever is made of the last.
    adapter.encode(texts, task.get("types") or None, {"pooling": "mean", "normalise": False})
    positions, tensors = sum(map(len, texts)), {}
    for layer, values in enumerate(adapter.hidden_states()):
        rows = tensors[f"hidden.{layer}"] = Rows(1, positions, size)
        rows.put(0, positions, values)
    write(tensors, task["file"])


def put(adapter, logits, sequences, start, end, left_out=0):
    piece = [sequence[start:end] for sequence in sequences]
    logits.put(start - left_out, end - left_out, adapter.values(adapter.append(piece, True)))


def write(tensors, path):
    header, end = {}, 0
    for name, rows in tensors.items():
        header[name] = {"dtype": "F32", "shape": rows.shape, "data_offsets": [end, end + len(rows.bytes)]}
        end += len(rows.bytes)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    try:
        with open(path, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for rows in tensors.values():
                file.write(rows.bytes)
    except OSError as error:
        raise WorkerError(f"cannot write {path}: {error}") from None

"""Spectrograms of audio, read before a request begins."""

from array import array
from pathlib import Path

from ..bundle import bad_input


class Audio:
    """`sizes`: `bands` and `frames` of what the model hears."""

    def __init__(self, sizes):
        self._bands, self._frames = sizes["bands"], sizes["frames"]
        self._read = {}

    def frames(self, heard):
        """The numbers of a spectrogram, `[bands, frames]`, each band beginning with the frame that is asked for."""
        file, turn = heard["file"], heard.get("turn", 0) % self._frames
        if file not in self._read:
            self._read[file] = self._numbers(file)
        numbers, turned = self._read[file], array("f")
        for start in range(0, len(numbers), self._frames):
            band = numbers[start : start + self._frames]
            turned += band[turn:] + band[:turn]
        return turned

    def _numbers(self, file):
        try:
            held, expected = Path(file).read_bytes(), 4 * self._bands * self._frames
        except OSError as error:
            raise bad_input(f"{file}: {error.strerror}") from None
        if len(held) != expected:
            raise bad_input(f"{file}: a spectrogram of {len(held)} bytes, where the model takes {expected}")
        return array("f", held)


def check(audio, model, sequences=1):
    """Whether there is audio for each of the sequences if the model hears, and none if it does not."""
    if len(audio) != (sequences if model else 0):
        raise bad_input("there is audio, one for each sequence, if the model hears, and none if it does not")

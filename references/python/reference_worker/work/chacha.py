"""The random numbers of workers: ChaCha8 (Bernstein 2008) as the crate rand_chacha seeds and reads it."""

from struct import pack, unpack

MASK = (1 << 32) - 1
MASK_64 = (1 << 64) - 1
CONSTANTS = unpack("<4I", b"expand 32-byte k")
COLUMNS = [(i, i + 4, i + 8, i + 12) for i in range(4)]
DIAGONALS = [(i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4) for i in range(4)]
DOUBLE_ROUNDS = 4
ROTATIONS = ((0, 1, 3, 16), (2, 3, 1, 12), (0, 1, 3, 8), (2, 3, 1, 7))


class Stream:
    """One of the streams of a seed, from its beginning."""

    def __init__(self, seed, stream):
        self._key, self._stream = key(seed), unpack("<2I", pack("<Q", stream))
        self._block, self._words = 0, []

    def uniform(self):
        """The next number in (0, 1]: 53 bits of 64."""
        if not self._words:
            self._words = self._next_block()
        low, high = self._words.pop(), self._words.pop()
        return ((high << 32 | low) >> 11) / 2**53 + 2**-53

    def _next_block(self):
        """16 words, the first of them last."""
        start = [*CONSTANTS, *self._key, *unpack("<2I", pack("<Q", self._block)), *self._stream]
        state = list(start)
        for _ in range(DOUBLE_ROUNDS):
            for quarter in COLUMNS + DIAGONALS:
                for target, added, mixed, bits in ROTATIONS:
                    target, added, mixed = quarter[target], quarter[added], quarter[mixed]
                    state[target] = (state[target] + state[added]) & MASK
                    word = state[mixed] ^ state[target]
                    state[mixed] = (word << bits | word >> (32 - bits)) & MASK
        self._block += 1
        return [(a + b) & MASK for a, b in zip(state, start)][::-1]


def key(seed):
    """Eight words from a seed of 64 bits: PCG32 (O'Neill 2014), as rand_core's `seed_from_u64`."""
    words, state = [], seed
    for _ in range(8):
        state = (state * 6364136223846793005 + 11634580027462260723) & MASK_64
        shifted = ((state >> 18 ^ state) >> 27) & MASK
        turn = state >> 59
        words.append((shifted >> turn | shifted << (32 - turn)) & MASK)
    return words

"""Random 64-bit words that belong to examples, without a generator that carries a state."""

import numpy as np

# SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014): a counter that
# moves by GOLDEN and a finaliser, which is a bijection of 64-bit words.
GOLDEN = 0x9E3779B97F4A7C15
WORD = 2**64 - 1


def random_words(seed: int, stream: int, examples: np.ndarray, draws: int) -> np.ndarray:
    """uint64 [draws, B]: independent uniform 64-bit words for each example.

    A function of (seed, stream, example) alone; a stream is a view, or a step.

    Seed, stream and example are mixed in one after the other, so that no sum of them can make two of them meet; the
    result is the start of the example's own SplitMix64 sequence.
    """
    state = np.zeros(len(examples), np.uint64)
    for key in (seed, stream, np.asarray(examples)):
        key = np.uint64(key & WORD) if isinstance(key, int) else key.astype(np.uint64)
        state = _mix((state ^ key) + np.uint64(GOLDEN))
    steps = np.arange(1, draws + 1, dtype=np.uint64)[:, None] * np.uint64(GOLDEN)  # [draws, 1]
    return _mix(state + steps)


def _mix(words: np.ndarray) -> np.ndarray:
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))

"""Which numbers are probabilities, whatever rounding made of them: taken for logits, they would ruin every metric."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

# -- what rounding makes of probabilities: that of float32, float16 or bfloat16 (8 bits), or of decimals with few digits
BEYOND = 2**-10  # how far a value may lie outside [0, 1]: one step of float16 above 1
OFF = 2**-6  # how far a sum may lie from 1: eight roundings of bfloat16, for a softmax computed in it throughout
DIGITS = (2, 3, 4)
# -- how many such rows make probabilities of what is called logits
SHARE = 0.9  # of all rows: a few broken ones excuse nothing, and of logits 0 and 1 for two classes only half look so
BITS = 20  # of evidence: logits look so by chance once in a million


def look_like_probabilities(layer: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether each row of [N, C] is within [0, 1] and sums to 1, as far as rounding lets it."""
    alike = ((layer >= -BEYOND) & (layer <= 1 + BEYOND)).all(axis=1)
    candidates = layer[alike].astype(float)  # none or few, if they are logits
    off = np.abs(candidates.sum(axis=1) - 1)
    fits = off <= OFF
    for step in (10.0**-digits for digits in DIGITS):
        # Each of C decimals is off by up to half a step; those below it are lost, but most should be there.
        rest = np.flatnonzero(~fits & (off <= min(len(layer[0]) * step / 2, 0.5)))
        multiples = candidates[rest] / step
        fits[rest] = (np.abs(multiples - np.rint(multiples)) <= 1 / 40).all(axis=1)  # float16 holds .57 that well
    alike[alike] = fits
    return alike


def evidence(rows: NDArray[Any]) -> float:
    """Evidence of rows [n, C] that look like probabilities, in bits: how unlikely logits within [0, 1] do so by chance.

    Of the 2^C rows of zeros and ones, such as [1, 0], C have the sum 1. Any other row has to meet it within 1/64 on
    either side, and of two values with a free sum one in 32 does.
    """
    classes = rows.shape[1]
    binary = classes - math.log2(classes)
    fractions = np.count_nonzero((rows % 1).any(axis=1))
    return (len(rows) - fractions) * binary + fractions * max(binary, 5)

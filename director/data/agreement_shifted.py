"""The sentences of `agreement` under shift: longer dependencies, and nouns and verbs that it never uses."""

from pathlib import Path

from director.data.agreement import ALL_WORDS, generate
from director.data.dataset import Dataset, Description

COUNT = 1500
DISTRACTORS = (2, 3)


def fetch(made_from: dict[str, Path]) -> Dataset:
    """1,500 different sentences with 2 or 3 distractors, from words seen and unseen; grammar and noise unchanged."""
    return generate("agreement_shifted", COUNT, DISTRACTORS, ALL_WORDS, seed=1)


DATASET = Description("agreement_shifted", "texts", fetch, shift_of="agreement", has_probability=True)

"""Sentences of a small English grammar, acceptable or not, whose labels are wrong with a known probability.

As in CoLA, class 1 is acceptable; unlike there, the best possible prediction p(acceptable | sentence) is known exactly,
so that what a method predicts can be compared with it. The verb of a sentence agrees with its subject, from which
other nouns (distractors) separate it: `the keys near the cabinet are old`. Everything is generated; nothing is fetched.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from director.data.dataset import Dataset, Description
from director.data.texts import Texts

Item = TypeVar("Item")
COUNT = 6000
DISTRACTORS = (0, 1, 2)
# Probability that a label is wrong, and share of the sentences, by predicate: `is old`, `is sleeping`, `is seeing the
# cat`. The best possible accuracy is then about 0.89.
NOISE = {"copula": 0.02, "intransitive": 0.1, "transitive": 0.25}
SHARE = (0.4, 0.35, 0.25)
# What is wrong with an unacceptable sentence: number of the verb, order of two neighbours, or a noun left out.
FLAWS, FLAW_SHARE = ("agreement", "order", "missing"), (0.6, 0.2, 0.2)
ADJECTIVE_SHARE = 0.25  # of the noun phrases

DETERMINERS = ("the", "my")
ADJECTIVES = ("old", "new", "small", "quiet", "clean", "famous")
PREPOSITIONS = ("near", "behind", "beside")


@dataclass(frozen=True)
class Words:
    """Open word classes: nouns in the singular (the plural has an s more), verbs in their form with `is`."""

    nouns: tuple[str, ...]
    intransitive: tuple[str, ...]
    transitive: tuple[str, ...]


WORDS = Words(
    ("bird", "boat", "cat", "doctor", "dog", "friend", "key", "king", "letter", "pilot", "queen", "tree"),
    ("arriving", "falling", "singing", "sleeping", "waiting"),
    ("avoiding", "finding", "helping", "seeing", "watching"),
)
# Those added here occur in `agreement_shifted` only. Their letters occur in the words above, so that a tokenizer that
# was trained on `agreement` can spell them.
ALL_WORDS = Words(
    (*WORDS.nouns, "captain", "cloud", "mountain", "painter", "sailor", "tiger"),
    (*WORDS.intransitive, "dancing", "shouting"),
    (*WORDS.transitive, "greeting", "praising"),
)

# Each word's class as a letter: d, a, p, n and N nouns, b and B `is` and `are`, i and t verbs; capitals are plural.
LETTERS = {"is": "b", "are": "B"} | {
    word: letter
    for letter, words in {
        "d": DETERMINERS,
        "a": ADJECTIVES,
        "p": PREPOSITIONS,
        "n": ALL_WORDS.nouns,
        "N": [f"{noun}s" for noun in ALL_WORDS.nouns],
        "i": ALL_WORDS.intransitive,
        "t": ALL_WORDS.transitive,
    }.items()
    for word in words
}
# Subject, distractors and predicate, with subject and verb both singular or both plural.
ACCEPTABLE = re.compile("da?(n(pda?[nN])*b|N(pda?[nN])*B)(a|i|tda?[nN])")


def is_acceptable(sentence: str) -> bool:
    """Whether the grammar allows a sentence of its words."""
    return ACCEPTABLE.fullmatch(_classes(sentence)) is not None


def bayes_probability(sentence: str) -> float:
    """p(acceptable | sentence), a function of the sentence alone, all of whose words are in LETTERS."""
    classes = _classes(sentence)
    predicate = "transitive" if "t" in classes else "intransitive" if "i" in classes else "copula"
    return 1 - NOISE[predicate] if is_acceptable(sentence) else NOISE[predicate]


def fetch(made_from: dict[str, Path]) -> Dataset:
    """6,000 different sentences with 0 to 2 distractors, half of them acceptable before their labels are drawn."""
    return generate("agreement", COUNT, DISTRACTORS, WORDS, seed=0)


def generate(name: str, count: int, distractors: tuple[int, ...], words: Words, seed: int) -> Dataset:
    """`count` different sentences in random order, with labels drawn from their `probability` [N, 2]; all from `seed`.

    distractors: how many nouns may stand between subject and verb, each number equally often.
    """
    rng = np.random.default_rng(seed)
    sentences: dict[str, None] = {}  # a set that keeps the order of insertion
    while len(sentences) < count:
        flaw = None if len(sentences) % 2 else rng.choice(FLAWS, p=FLAW_SHARE)
        sentence = _sentence(words, _any_of(distractors, rng), flaw, rng)
        if is_acceptable(sentence) is (flaw is None):  # to exchange two words of one class is no flaw
            sentences[sentence] = None
    texts = rng.permutation(list(sentences))
    acceptable = np.array([bayes_probability(text) for text in texts])
    labels = (rng.random(count) < acceptable).astype(np.int64)
    probability = np.stack([1 - acceptable, acceptable], axis=1)
    about = {"source": f"generated, seed {seed}", "generated": True, "licence": "that of this package"}
    return Dataset.clean(name, Texts.of(texts.tolist()), labels, probability, **about)


def _sentence(words: Words, distractors: int, flaw: str | None, rng: np.random.Generator) -> str:
    plural = bool(rng.integers(2))
    sentence = _noun_phrase(words, plural, rng)
    for _ in range(distractors):
        sentence += [_any_of(PREPOSITIONS, rng), *_noun_phrase(words, bool(rng.integers(2)), rng)]
    sentence += _predicate(words, plural is not (flaw == "agreement"), rng)
    if flaw == "order":
        first = rng.integers(len(sentence) - 1)
        sentence[first : first + 2] = sentence[first + 1], sentence[first]
    if flaw == "missing":
        nouns = [position for position, word in enumerate(sentence) if LETTERS[word] in "nN"]
        del sentence[_any_of(nouns, rng)]
    return " ".join(sentence)


def _noun_phrase(words: Words, plural: bool, rng: np.random.Generator) -> list[str]:
    adjective = [_any_of(ADJECTIVES, rng)] if rng.random() < ADJECTIVE_SHARE else []
    return [_any_of(DETERMINERS, rng), *adjective, _any_of(words.nouns, rng) + "s" * plural]


def _predicate(words: Words, plural: bool, rng: np.random.Generator) -> list[str]:
    verb = "are" if plural else "is"
    kind = rng.choice(list(NOISE), p=SHARE)
    if kind == "copula":
        return [verb, _any_of(ADJECTIVES, rng)]
    if kind == "intransitive":
        return [verb, _any_of(words.intransitive, rng)]
    return [verb, _any_of(words.transitive, rng), *_noun_phrase(words, bool(rng.integers(2)), rng)]


def _any_of(choices: Sequence[Item], rng: np.random.Generator) -> Item:
    return choices[rng.integers(len(choices))]


def _classes(sentence: str) -> str:
    return "".join(LETTERS[word] for word in sentence.split())


DATASET = Description("agreement", "texts", fetch, has_probability=True)

"""The generated sentences: grammar, noise, and that the stored probability is the best possible prediction."""

import numpy as np
import pytest

from director.data import agreement, agreement_shifted
from director.data.agreement import ALL_WORDS, LETTERS, NOISE, WORDS, bayes_probability, is_acceptable
from director.data.dataset import Dataset
from director.data.tokenizer import encode, train_tokenizer


@pytest.fixture(scope="module")
def sets():
    return agreement.fetch({}), agreement_shifted.fetch({})


@pytest.mark.parametrize(
    ("sentence", "acceptable"),
    [
        ("the keys near the captain are old", True),
        ("the keys near the captain is old", False),
        ("the key behind my dogs is seeing the old cats", True),
        ("the key behind my dogs are seeing the old cats", False),
        ("my old friends are sleeping", True),
        ("my old friends sleeping are", False),
        ("old my friends are sleeping", False),
        ("the near the captain are old", False),
        ("the key behind my is old", False),
        ("the dog is seeing the", False),
        ("the dog is seeing", False),
        ("the dog is the cat", False),
    ],
)
def test_grammar(sentence, acceptable):
    assert is_acceptable(sentence) is acceptable


def test_no_word_is_of_two_classes():
    words = [*agreement.DETERMINERS, *agreement.ADJECTIVES, *agreement.PREPOSITIONS, "is", "are"]
    words += [*ALL_WORDS.nouns, *(f"{noun}s" for noun in ALL_WORDS.nouns), *ALL_WORDS.intransitive]
    assert len(LETTERS) == len(words) + len(ALL_WORDS.transitive)


def test_sets_are_balanced_and_no_sentence_comes_twice(sets):
    for dataset, count in zip(sets, (6000, 1500), strict=True):
        sentences = list(dataset.inputs)
        assert len(dataset) == count == len(set(sentences))
        acceptable = np.array([is_acceptable(sentence) for sentence in sentences])
        assert acceptable.sum() == count / 2
        assert abs(acceptable[: count // 2].mean() - 0.5) < 0.05  # in random order
    assert not set(sets[0].inputs) & set(sets[1].inputs)


def test_probability_is_a_function_of_the_sentence_and_labels_are_drawn_from_it(sets):
    """The share of acceptable labels at each probability is that probability, within four standard errors."""
    for dataset in sets:
        truth = dataset.probability[:, 1]
        np.testing.assert_array_equal(truth, [bayes_probability(sentence) for sentence in dataset.inputs])
        assert set(truth) == {*NOISE.values(), *(1 - noise for noise in NOISE.values())}
        for value in set(truth):
            labels = dataset.labels[truth == value]
            assert abs(labels.mean() - value) < 4 * np.sqrt(value * (1 - value) / len(labels))
        assert 0.88 < dataset.probability.max(1).mean() < 0.93  # the best possible accuracy


def test_generation_is_a_function_of_its_seed(sets, tmp_path):
    for dataset, again in zip(sets, (agreement.fetch({}), agreement_shifted.fetch({})), strict=True):
        dataset.save(tmp_path / "first")
        again.save(tmp_path / "again")
        first, second = (Dataset.load(tmp_path / name) for name in ("first", "again"))
        assert first.about["fingerprint"] == second.about["fingerprint"] and first.about["generated"] is True
        np.testing.assert_array_equal(first.probability, dataset.probability)


def test_the_shift_is_longer_and_has_words_never_seen(sets):
    plain, shifted = ([set(sentence.split()) for sentence in dataset.inputs] for dataset in sets)
    seen = set.union(*plain)
    assert not {word for words in plain for word in words} & (set(ALL_WORDS.nouns) - set(WORDS.nouns))
    assert 0.5 < np.mean([bool(words - seen) for words in shifted]) < 1
    lengths = [np.mean([len(sentence.split()) for sentence in dataset.inputs]) for dataset in sets]
    assert lengths[1] > 1.4 * lengths[0]


def test_every_word_of_the_shift_can_be_spelled(sets):
    """Else a word would be one unknown token, its number with it, and its sentence beyond any method."""
    tokenizer = train_tokenizer(sets[0].inputs[np.arange(1000)], 200)
    tokens, _, cut = encode(tokenizer, list(sets[1].inputs), 48)
    assert not cut and (tokens != 1).all()


def test_neighbouring_words_do_not_give_the_label_away(sets):
    """A linear model of word pairs, learned from 3,000, stays far below the best possible accuracy of 0.89."""
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression

    sentences, labels = list(sets[0].inputs), sets[0].labels
    pairs = CountVectorizer(ngram_range=(1, 2), token_pattern=r"\S+")
    model = LogisticRegression(C=0.1).fit(pairs.fit_transform(sentences[:3000]), labels[:3000])
    distant = [row for row in range(3000, 6000) if sum(map(sentences[row].split().count, agreement.PREPOSITIONS)) == 2]
    features = pairs.transform([sentences[row] for row in distant])
    assert model.score(features, labels[distant]) < 0.75

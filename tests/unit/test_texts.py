"""Texts in two arrays, as a data set and as batches of tokens."""

import logging

import numpy as np
import pytest

from director.data.dataset import Dataset
from director.data.examples import TextExamples
from director.data.texts import Texts, decode
from director.data.tokenizer import train_tokenizer
from director.errors import InputError

STRINGS = ["the keys are here", "", "naïve café", "日本語 \U0001f600", 'a "quoted"\ttab\nline', "the key"]
CORPUS = ["the keys to the cabinet are here", "the key is old", "keys and cabinets"] * 3


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(CORPUS, 60)


def dataset(strings):
    return Dataset.clean("sentences", Texts.of(strings), np.arange(len(strings)) % 2)


# -- texts -------------------------------------------------------------------------------------------------------------


def test_texts_are_a_sequence_of_strings():
    texts = Texts.of(STRINGS)
    assert list(texts) == STRINGS and len(texts) == 6 and texts.shape == (6,)
    assert texts[2] == "naïve café" and texts[np.int64(-1)] == "the key"
    with pytest.raises(IndexError):
        texts[6]


@pytest.mark.parametrize(
    "rows", [slice(1, 5, 2), np.array([4, 0, 4, -1]), np.arange(6) % 2 == 0, np.zeros(0, int), slice(0, 0)]
)
def test_rows_are_selected_as_of_an_array(rows):
    assert list(Texts.of(STRINGS)[rows]) == np.array(STRINGS, object)[rows].tolist()


def test_no_text_is_a_text_set_too():
    assert list(Texts.of([])) == [] and len(Texts.of([])) == 0


def test_offsets_that_do_not_cut_the_content_are_refused():
    content = np.zeros(5, np.uint8)
    for offsets in ([0, 4], [1, 5], [0, 3, 2, 5], []):
        with pytest.raises(InputError, match="do not cut 5 bytes"):
            Texts(content, np.array(offsets, np.int64))
    with pytest.raises(InputError, match="uint8"):
        Texts(content.astype(np.int8), np.array([0, 5]))


def test_what_utf8_cannot_hold_is_named():
    with pytest.raises(InputError, match="text 1 cannot be written"):
        Texts.of(["fine", "half \ud83d a pair"])
    with pytest.raises(InputError, match=r"dev\.tsv, line 7: not UTF-8"):
        decode(b"caf\xe9", "dev.tsv, line 7")


def test_a_set_of_texts_is_saved_and_opened_as_memory_maps(tmp_path):
    dataset(STRINGS).save(tmp_path)
    loaded = Dataset.load(tmp_path)
    assert list(loaded.inputs) == STRINGS and isinstance(loaded.inputs.content, np.memmap)
    assert {"text.npy", "offsets.npy"} < set(loaded.about["files"]) and "images.npy" not in loaded.about["files"]
    chosen = loaded.of_examples(np.array([5, 0]))
    assert list(chosen.inputs) == [STRINGS[0], STRINGS[5]] and chosen.labels.tolist() == [0, 1]


def test_a_damaged_text_file_is_named(tmp_path):
    dataset(STRINGS).save(tmp_path)
    path = tmp_path / "text.npy"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"text\.npy.*delete the folder"):
        Dataset.load(tmp_path)


# -- batches -----------------------------------------------------------------------------------------------------------


def test_batches_are_padded_on_the_right_to_their_longest(tokenizer):
    examples = TextExamples(dataset(["the key", "the keys are here", "the"]), tokenizer, max_length=10)
    inputs, labels = examples.batch(np.array([1, 0, 2]))
    assert inputs["tokens"].dtype == np.int64 and inputs["mask"].dtype == bool
    assert examples.lengths.tolist() == inputs["mask"].sum(1)[[1, 0, 2]].tolist() and labels.tolist() == [1, 0, 0]
    assert inputs["tokens"].shape == (3, examples.lengths.max())
    assert (np.diff(inputs["mask"].astype(int)) <= 0).all()  # real tokens first
    assert (inputs["tokens"][~inputs["mask"]] == 0).all() and (inputs["tokens"][inputs["mask"]] > 1).all()
    alone, _ = examples.batch(np.array([2]))
    assert alone["tokens"].tolist() == inputs["tokens"][2:, :1].tolist() and alone["mask"].all()


def test_a_text_without_tokens_is_one_unknown_token(tokenizer):
    examples = TextExamples(dataset(["", "  ", "the key"]), tokenizer, max_length=10)
    inputs, _ = examples.batch(np.array([0, 1]))
    assert inputs["tokens"].tolist() == [[1], [1]] and inputs["mask"].all()


def test_ten_thousand_tokens_are_cut_and_counted_once(tokenizer, caplog):
    caplog.set_level(logging.INFO)
    examples = TextExamples(dataset(["the " * 10_000, "the key"]), tokenizer, max_length=7)
    for _ in range(2):
        inputs, _ = examples.batch(np.array([0, 1]))
    assert inputs["tokens"].shape == (2, 7) and len(set(inputs["tokens"][0])) == 1
    assert [record.getMessage() for record in caplog.records] == ["sentences: 1 of 2 texts cut to 7 tokens"]


def test_texts_without_labels_and_empty_batches(tokenizer):
    unlabelled = Dataset.clean("sentences", Texts.of(CORPUS), None)
    inputs, labels = TextExamples(unlabelled, tokenizer, 5).batch(np.zeros(0, int))
    assert labels is None and inputs["tokens"].shape == inputs["mask"].shape == (0, 0)


def test_images_are_not_texts(tokenizer):
    images = Dataset.clean("grey", np.zeros((3, 2, 2, 1), np.uint8), None)
    with pytest.raises(InputError, match="grey holds images, not texts"):
        TextExamples(images, tokenizer, 5)
    with pytest.raises(InputError, match="max_length is 0"):
        TextExamples(dataset(CORPUS), tokenizer, 0)


def test_an_epoch_visits_every_text_once_in_batches_of_like_length(tokenizer):
    rng = np.random.default_rng(0)
    strings = [" ".join(["key"] * count) for count in rng.integers(1, 40, 1000)]
    examples = TextExamples(dataset(strings), tokenizer, max_length=64)
    batches = examples.epoch_batches(16, seed=3, epoch=1)
    assert sorted(np.concatenate(batches)) == list(range(1000))
    assert sorted(map(len, batches)) == [8] + [16] * 62  # as many steps as for images

    def padded(batches):
        return sum(examples.batch(rows)[0]["mask"].size for rows in batches)

    plain = np.array_split(rng.permutation(1000), 63)
    assert padded(batches) < 1.1 * examples.lengths.sum() < 0.7 * padded(plain)
    lengths = [examples.lengths[rows].max() for rows in batches]
    assert abs(np.corrcoef(lengths, np.arange(len(lengths)))[0, 1]) < 0.4  # batches do not come by length

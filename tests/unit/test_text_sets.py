"""Published sets of texts: every form they come in gives the same set, and damage is one error that says where."""

import hashlib
import io
import logging
import shutil
import tarfile
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from director.data import cola, cola_ood, imdb
from director.data.catalogue import split_of
from director.data.dataset import Dataset
from director.data.sources import Unavailable, content_digest
from director.data.splits import load_split, write_split
from director.data.texts import Texts
from director.errors import InputError

TRAIN, DEV = "in_domain_train.tsv", "in_domain_dev.tsv"
TSV = {
    TRAIN: b'gj04\t1\t\tThe "keys" are here.\ngj04\t0\t*\tKeys the here are.\ngj04\t1\t\t\n',
    DEV: b"gj04\t0\t??\tJos\xc3\xa9 sleep.",  # the last line may lack its end
}
SENTENCES = ['The "keys" are here.', "Keys the here are.", "", "José sleep."]
REVIEWS = {
    "train": [("Dull.<br />", 0), ("Bad", 0), ("A joy", 1), ("café", 1)],
    "test": [("Bad", 0), ("Awful", 0), ("Zest", 1), ("Fine", 1)],  # one text of the train part too
}
IN_ORDER = ["Bad", "Dull.<br />", "A joy", "café", "Awful", "Bad", "Fine", "Zest"]
OUT = "out_of_domain_dev.tsv"


def digest(labels, texts):
    return content_digest(labels, map(str.encode, texts))


def unavailable(*words, **options):
    raise Unavailable("not reached")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A user's folder of data, small sets in place of the published ones, and nothing beyond it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DIRECTOR_DATA", str(tmp_path))
    monkeypatch.setattr(cola, "COUNTS", {TRAIN: (1, 2), DEV: (1, 0)})
    rows = {TRAIN: digest([1, 0, 1], SENTENCES[:3]), DEV: digest([0], SENTENCES[3:]), OUT: digest([1], ["Out."])}
    monkeypatch.setattr(cola, "SHA256", rows)
    monkeypatch.setattr(cola_ood, "COUNTS", {OUT: (0, 1)})
    monkeypatch.setattr(imdb, "OF_EACH", 2)
    rows = {part: digest([0, 0, 1, 1], texts) for part, texts in (("train", IN_ORDER[:4]), ("test", IN_ORDER[4:]))}
    monkeypatch.setattr(imdb, "SHA256", rows)
    for module in (cola, imdb):
        monkeypatch.setattr(module, "download", unavailable)
    monkeypatch.setattr(imdb, "from_hub", unavailable)
    return tmp_path


def saved(dataset, folder):
    dataset.save(folder)
    return Dataset.load(folder)


def write_tsv(folder, **changes):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (TSV | changes).items():
        (folder / name).write_bytes(content)


# -- CoLA --------------------------------------------------------------------------------------------------------------


def write_cola_zip(path, monkeypatch):
    with zipfile.ZipFile(path, "w") as file:
        for name, content in TSV.items():
            file.writestr(f"cola_public/raw/{name}", content)
    monkeypatch.setattr(cola, "MD5", md5(path))


@pytest.mark.parametrize("form", ["files", "archive's folders", "archive", "publisher"])
def test_cola_is_the_same_from_every_source(folder, monkeypatch, form):
    if form == "publisher":
        write_cola_zip(folder / "downloaded.zip", monkeypatch)
        monkeypatch.setattr(cola, "download", lambda url, target, md5: folder / "downloaded.zip")
    elif form == "archive":
        (folder / "cola").mkdir()
        write_cola_zip(folder / "cola" / cola.ARCHIVE, monkeypatch)
    else:
        write_tsv(folder / ("cola" if form == "files" else "cola/cola_public/raw"))
    found = saved(cola.fetch({}), folder / "fetched")
    assert list(found.inputs) == SENTENCES and found.labels.tolist() == [1, 0, 1, 0]
    assert found.name == "cola" and found.about["citation"] == "warstadt2019neural"
    same = Dataset.clean("cola", Texts.of(SENTENCES), np.array([1, 0, 1, 0]))
    assert found.about["fingerprint"] == saved(same, folder / "same").about["fingerprint"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "line 1: 1 columns, not 4"),
        (b"gj04\t1\t\tFine.\ngj04\t1\tNo mark.\n", "line 2: 3 columns, not 4"),
        (b"gj04\t1\t\tA tab\tinside.\n", "line 1: 5 columns, not 4"),
        (b"gj04\t1\t\tFine.\n\ngj04\t0\t*\tAfter a gap.\n", "line 2: 1 columns, not 4"),
        (b"gj04\t1\t\tFine.\ngj04\t-1\t\tHidden.\n", r"line 2: label '-1' is neither 0 nor 1; .* GLUE"),
        (b"gj04\t2\t\tTwo.\n", "line 1: label '2'"),
        (b"gj04\tyes\t\tWord.\n", "line 1: label 'yes'"),
        (b"gj04\t1\t\tFine.\ngj04\t1\t\tJos\xe9.\n", "line 2: not UTF-8"),
        (TSV[TRAIN][:-9], "line 3: 2 columns|line 3: 1 columns|1 unacceptable and 1 acceptable sentences, not 1 and 2"),
        (TSV[TRAIN] * 2, "2 unacceptable and 4 acceptable sentences, not 1 and 2"),
    ],
)
def test_a_damaged_file_of_cola_is_named_with_its_line(folder, content, message):
    write_tsv(folder / "cola", **{TRAIN: content})
    with pytest.raises(InputError, match=rf"in_domain_train\.tsv[,:] ({message})"):
        cola.fetch({})


def test_half_of_cola_is_not_cola(folder):
    write_tsv(folder / "cola")
    (folder / "cola" / DEV).unlink()
    with pytest.raises(InputError, match=r"in_domain_dev\.tsv is missing beside"):
        cola.fetch({})


def test_cola_that_is_nowhere_says_how_to_provide_it(folder):
    with pytest.raises(InputError, match=r"cola was not found.*in_domain_train\.tsv and in_domain_dev\.tsv.*https://"):
        cola.fetch({})


WINDOWS = {name: b"\xef\xbb\xbf" + content.replace(b"\n", b"\r\n") for name, content in TSV.items()}


def test_line_ends_and_a_byte_order_mark_are_no_content(folder):
    """A carriage return at the end of every sentence was taken for the published set, its numbers being right."""
    write_tsv(folder / "cola", **WINDOWS)
    found = cola.fetch({})
    assert list(found.inputs) == SENTENCES and found.labels.tolist() == [1, 0, 1, 0]


@pytest.mark.parametrize(
    ("part", "old", "new"),
    [
        (TRAIN, b'The "keys" are here.', b'"The ""keys"" are here."'),  # as a spreadsheet writes it
        (TRAIN, b'"keys"', "“keys”".encode()),  # as an editor does
        (TRAIN, b"\t1\t\tThe", b"\t1\t\t The"),
        (DEV, b"sleep.", b"sleep. "),
    ],
)
def test_cola_with_the_right_numbers_and_another_content_is_refused_by_name(folder, part, old, new):
    assert old in TSV[part]
    write_tsv(folder / "cola", **{part: TSV[part].replace(old, new)})
    with pytest.raises(InputError, match=rf"cola/{part}: not the published content.*spreadsheet.*take the publisher's"):
        cola.fetch({})


def test_labels_that_changed_places_are_another_content(folder):
    lines = TSV[TRAIN].replace(b"\t0\t*", b"\t1\t*").replace(b"\t1\t\tThe", b"\t0\t\tThe")
    write_tsv(folder / "cola", **{TRAIN: lines})
    with pytest.raises(InputError, match=r"in_domain_train\.tsv: not the published content"):
        cola.fetch({})


def test_what_only_the_users_file_has_of_its_own_is_no_reason_to_delete_it(folder):
    write_tsv(folder / "cola", **{TRAIN: TSV[TRAIN] * 2})
    with pytest.raises(InputError) as error:
        cola.fetch({})
    assert "delete" not in str(error.value) and "damaged" not in str(error.value)


@pytest.mark.parametrize("name", ["cola", "CoLA", "cola_public", "cola_public/raw", "raw", "CoLA/cola_public/raw"])
def test_cola_is_found_under_the_names_it_has(folder, name):
    write_tsv(folder / "data" / name)
    with pytest.MonkeyPatch.context() as patch:
        for below in ("data", f"data/{name}"):
            patch.setenv("DIRECTOR_DATA", str(folder / below))
            assert list(cola.fetch({}).inputs) == SENTENCES


@pytest.mark.parametrize("name", ["cola_ood", "CoLA", "cola", "cola_public/raw"])
def test_the_other_domain_is_found_where_cola_is_and_under_its_own_name(folder, name):
    write_tsv(folder / name, **{OUT: b"clc95\t1\t\tOut."})
    assert list(cola_ood.fetch({}).inputs) == ["Out."]


def test_glues_cola_is_passed_over_with_a_word(folder, caplog):
    (folder / "CoLA").mkdir()
    (folder / "CoLA" / "train.tsv").write_bytes(TSV[TRAIN])
    with pytest.raises(InputError, match="cola was not found"):
        cola.fetch({})
    assert f"{folder / 'CoLA'} is not used: it has no form of cola that is read" in caplog.text


def test_an_archive_that_a_browser_or_wget_named_is_found(folder, monkeypatch):
    (folder / "cola").mkdir()
    write_cola_zip(folder / "cola" / f"{cola.ARCHIVE}?download=1", monkeypatch)
    assert list(cola.fetch({}).inputs) == SENTENCES
    monkeypatch.setattr(cola, "MD5", "0" * 32)
    with pytest.raises(InputError, match=r"zip\?download=1: MD5"):
        cola.fetch({})


def numbered(name, count, **about):
    return Dataset.clean(name, Texts.of(map(str, range(count))), np.arange(count) % 2, **about)


def test_cola_is_split_as_in_the_paper(tmp_path):
    pool = numbered("cola", 9078)
    parts = [split_of(pool, 6355, 907, seed) for seed in range(3)]
    assert {name: len(rows) for name, rows in parts[0].items()} == {"train": 6355, "validation": 907, "test": 1816}
    assert all((other["test"] == parts[0]["test"]).all() for other in parts)
    assert (parts[1]["train"] != parts[0]["train"]).any()
    held_out = np.concatenate(list(parts[0].values()))
    assert len(np.unique(held_out)) == 9078

    write_split(tmp_path / "s.npz", split_of(pool, 6355, 907, 0, "paper"))
    paper = load_split(tmp_path / "s.npz")
    np.testing.assert_array_equal(paper["validation"], parts[0]["test"])
    np.testing.assert_array_equal(paper["test"], parts[0]["test"])
    np.testing.assert_array_equal(paper["train"], parts[0]["train"])
    with pytest.raises(InputError, match="cola has no protocol guess, only held_out and paper"):
        split_of(pool, 6355, 907, 0, protocol="guess")


# -- IMDB --------------------------------------------------------------------------------------------------------------


def table(part, **columns):
    texts, labels = zip(*REVIEWS[part], strict=True)
    return pa.table({"id": ["0_1"] * 4, "text": list(texts), "label": list(labels)} | columns)  # equal ids do no harm


def write_parquet(folder, train=None, names=("train.parquet", "test.parquet")):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in zip(names, (train or table("train"), table("test")), strict=True):
        pq.write_table(content, folder / name)


def write_tree(folder):
    for part, reviews in REVIEWS.items():
        for number, (text, label) in enumerate(reviews):
            path = folder / part / imdb.CLASSES[label] / f"{number}_7.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode())


def write_imdb_archive(path, monkeypatch):
    write_tree(path.parent / "tree")
    with tarfile.open(path, "w:gz") as file:
        file.add(path.parent / "tree", "aclImdb")
    shutil.rmtree(path.parent / "tree")
    monkeypatch.setattr(imdb, "MD5", md5(path))


def md5(path):
    return hashlib.md5(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("form", ["parquet", "hub's parquet", "files", "archive", "publisher", "hub"])
def test_imdb_is_the_same_from_every_source(folder, monkeypatch, form):
    here = folder / "imdb"
    here.mkdir()
    if form == "parquet":
        write_parquet(here)
    elif form == "hub's parquet":
        write_parquet(here / "plain_text", names=("train-00000-of-00001.parquet", "test-00000-of-00001.parquet"))
    elif form == "files":
        write_tree(here / "aclImdb")
    elif form == "archive":
        write_imdb_archive(here / imdb.ARCHIVE, monkeypatch)
    elif form == "publisher":
        write_imdb_archive(folder / "downloaded.tar.gz", monkeypatch)
        monkeypatch.setattr(imdb, "download", lambda url, target, md5: folder / "downloaded.tar.gz")
    else:
        monkeypatch.setattr(imdb, "from_hub", lambda repository, part, config: table(part).select(["text", "label"]))
    found = saved(imdb.fetch({}), folder / "fetched")
    assert list(found.inputs) == IN_ORDER and found.labels.tolist() == [0, 0, 1, 1] * 2
    assert found.about["parts"] == {"train": 4, "test": 4}
    same = Dataset.clean("imdb", Texts.of(IN_ORDER), np.array([0, 0, 1, 1] * 2))
    assert found.about["fingerprint"] == saved(same, folder / "same").about["fingerprint"]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"label": [0, 0, 1, -1]}, r"label -1 in row 3 is not in 0\.\.1"),
        ({"label": [0, 2, 1, 1]}, r"label 2 in row 1 is not in 0\.\.1"),
        ({"label": [0, 0, 1, None]}, "column label has gaps"),
        ({"label": [0.0, 0.0, 1.0, 1.0]}, "column label is double, not whole numbers"),
        ({"text": ["a", None, "b", "c"]}, "column text has gaps"),
        ({"text": pa.array([b"a", b"b", b"caf\xe9", b"d"], pa.binary())}, "row 2: not UTF-8"),
        ({"text": pa.array([b"a", b"\xff", b"c", b"d"]).view(pa.string())}, "row 1: not UTF-8"),
        ({"label": [0, 1, 1, 1]}, "1 negative and 3 positive reviews in the train part, not 2 of each"),
    ],
)
def test_bad_rows_of_imdb_are_named(folder, columns, message):
    write_parquet(folder / "imdb", table("train", **columns))
    with pytest.raises(InputError, match=message):
        imdb.fetch({})


def test_missing_columns_and_parts_of_imdb_are_named(folder):
    write_parquet(folder / "imdb", table("train").rename_columns(["id", "review", "label"]))
    with pytest.raises(InputError, match="no column text among id, review, label"):
        imdb.fetch({})
    (folder / "imdb" / "train.parquet").unlink()
    with pytest.raises(InputError, match="one part only"):
        imdb.fetch({})


@pytest.mark.parametrize("harm", ["truncated", "empty"])
def test_a_damaged_parquet_file_is_named(folder, harm):
    write_parquet(folder / "imdb")
    path = folder / "imdb" / "train.parquet"
    path.write_bytes(path.read_bytes()[:-20] if harm == "truncated" else b"")
    with pytest.raises(InputError, match=r"train\.parquet: not a whole Parquet file"):
        imdb.fetch({})


@pytest.mark.parametrize("form", ["parquet", "files", "hub"])
def test_imdb_with_the_right_numbers_and_another_content_is_refused_by_name(folder, monkeypatch, form):
    changed = table("train", text=["Dull.<br/>", "Bad", "A joy", "café"])
    if form == "parquet":
        write_parquet(folder / "imdb", changed)
    elif form == "files":
        write_tree(folder / "aclImdb")
        (folder / "aclImdb/train/neg/0_7.txt").write_text("Dull.<br/>")
    else:
        monkeypatch.setattr(imdb, "from_hub", lambda repository, part, config: changed)
    where = {"parquet": r"train\.parquet", "files": "aclImdb/train", "hub": "stanfordnlp/imdb, train"}[form]
    with pytest.raises(InputError, match=rf"{where}: not the published content"):
        imdb.fetch({})


def test_a_byte_order_mark_is_no_part_of_a_review(folder):
    write_tree(folder / "aclImdb")
    path = folder / "aclImdb/train/pos/3_7.txt"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert list(imdb.fetch({}).inputs) == IN_ORDER


@pytest.mark.parametrize("name", ["aclImdb", "imdb/aclImdb", "imdb", "IMDB", "IMDB/aclImdb"])
def test_imdb_is_found_under_the_names_it_has(folder, monkeypatch, name):
    write_tree(folder / "data" / name)
    for below in ("data", f"data/{name}"):
        monkeypatch.setenv("DIRECTOR_DATA", str(folder / below))
        assert list(imdb.fetch({}).inputs) == IN_ORDER


def test_parquet_files_in_a_folder_called_imdb_in_capitals(folder):
    write_parquet(folder / "IMDB")
    assert list(imdb.fetch({}).inputs) == IN_ORDER


def test_of_two_folders_the_one_that_is_not_used_is_reported(folder, caplog):
    write_tree(folder / "aclImdb")
    write_parquet(folder / "imdb")
    with caplog.at_level(logging.INFO):
        assert imdb.fetch({}).about["source"] == "Parquet files"
    assert f"imdb: from {folder / 'imdb'}" in caplog.text
    assert f"{folder / 'aclImdb'} is not used, since {folder / 'imdb'} comes before it" in caplog.text


def test_bad_files_of_imdb_are_named(folder):
    write_tree(folder / "imdb" / "aclImdb")
    path = folder / "imdb/aclImdb/test/pos/2_7.txt"
    path.write_bytes(b"caf\xe9")
    with pytest.raises(InputError, match=r"2_7\.txt: not UTF-8"):
        imdb.fetch({})
    path.unlink()
    with pytest.raises(InputError, match="2 negative and 1 positive reviews in the test part"):
        imdb.fetch({})
    shutil.rmtree(folder / "imdb/aclImdb/train")
    with pytest.raises(InputError, match="0 negative and 0 positive reviews in the train part"):
        imdb.fetch({})


def test_an_archive_of_something_else_is_not_imdb(folder, monkeypatch):
    path = folder / imdb.ARCHIVE
    with tarfile.open(path, "w:gz") as file:
        file.addfile(tarfile.TarInfo("README"), io.BytesIO())
    monkeypatch.setattr(imdb, "MD5", md5(path))
    with pytest.raises(InputError, match="holds no aclImdb"):
        imdb.fetch({})


def test_imdb_that_is_nowhere_says_how_to_provide_it(folder):
    with pytest.raises(InputError, match=r"imdb was not found.*aclImdb/.*stanfordnlp/imdb.*https://"):
        imdb.fetch({})


def test_imdb_is_split_by_class_and_tested_on_its_test_part():
    labels = np.tile(np.repeat([0, 1], 100), 2)
    reviews = Dataset.clean("imdb", Texts.of(["x"] * 400), labels, parts={"train": 200, "test": 200})
    parts = [split_of(reviews, 120, 40, seed) for seed in (0, 1)]
    for name, count in {"train": 120, "validation": 40, "test": 200}.items():
        np.testing.assert_array_equal(parts[0][name], parts[1][name])
        assert np.bincount(labels[parts[0][name]]).tolist() == [count // 2, count // 2]
    assert parts[0]["test"].tolist() == list(range(200, 400))
    assert not np.intersect1d(parts[0]["train"], parts[0]["validation"]).size


# -- the published sets ------------------------------------------------------------------------------------------------


def test_published_cola_is_whole(shared, monkeypatch):
    monkeypatch.setenv("DIRECTOR_DATA", str(shared / "data"))
    pool, other = cola.fetch({}), cola_ood.fetch({})
    assert len(pool) == 8551 + 527 and len(other) == 516
    assert np.bincount(pool.labels[:8551]).tolist() == [2528, 6023]
    assert np.bincount(pool.labels[8551:]).tolist() == [162, 365]
    assert np.bincount(other.labels).tolist() == [162, 354]
    lines = [
        line
        for name in (TRAIN, DEV)
        for line in (shared / "data" / "cola" / name).read_text(encoding="utf-8").splitlines()
    ]
    assert [line.split("\t")[3] for line in lines] == list(pool.inputs)
    assert "José ate cabbage, and Holly has too." in list(pool.inputs)


def test_published_cola_from_windows_is_the_same_set(shared, monkeypatch, tmp_path):
    monkeypatch.setenv("DIRECTOR_DATA", str(shared / "data"))
    expected = saved(cola.fetch({}), tmp_path / "expected").about["fingerprint"]
    (tmp_path / "cola").mkdir()
    for name in (TRAIN, DEV):
        content = (shared / "data/cola" / name).read_bytes()
        (tmp_path / "cola" / name).write_bytes(b"\xef\xbb\xbf" + content.replace(b"\n", b"\r\n"))
    monkeypatch.setenv("DIRECTOR_DATA", str(tmp_path))
    assert saved(cola.fetch({}), tmp_path / "found").about["fingerprint"] == expected


def test_published_cola_from_a_spreadsheet_is_refused(shared, monkeypatch, tmp_path):
    """All its lines and labels are there; sentences that hold quotes have more of them."""
    import csv

    (tmp_path / "cola").mkdir()
    for name in (TRAIN, DEV):
        lines = (shared / "data/cola" / name).read_text(encoding="utf-8").removesuffix("\n").split("\n")
        with (tmp_path / "cola" / name).open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, delimiter="\t").writerows(line.split("\t") for line in lines)
    monkeypatch.setenv("DIRECTOR_DATA", str(tmp_path))
    with pytest.raises(InputError, match=r"in_domain_train\.tsv: not the published content"):
        cola.fetch({})


def test_published_imdb_is_whole(shared, monkeypatch):
    monkeypatch.setenv("DIRECTOR_DATA", str(shared / "data"))
    reviews = imdb.fetch({})
    assert len(reviews) == 50_000
    assert [np.bincount(reviews.labels[rows]).tolist() for rows in (slice(25_000), slice(25_000, None))] == [
        [12_500, 12_500],
        [12_500, 12_500],
    ]
    train, test = (set(reviews.inputs[rows]) for rows in (slice(25_000), slice(25_000, None)))
    assert len(train & test) == 123  # as published
    assert sum("<br />" in text for text in train) > 10_000  # marks are left as they are


@pytest.mark.parametrize(
    ("part", "counts"),
    [
        ("train", {1: 5100, 2: 2284, 3: 2420, 4: 2696, 7: 2496, 8: 3009, 9: 2263, 10: 4732}),
        ("test", {1: 5022, 2: 2302, 3: 2541, 4: 2635, 7: 2307, 8: 2850, 9: 2344, 10: 4999}),
    ],
)
def test_published_labels_of_imdb_are_its_ratings(shared, part, counts):
    columns = pq.read_table(shared / "data" / "imdb" / f"{part}.parquet", columns=["rating", "label"])
    ratings, labels = columns["rating"].to_numpy(), columns["label"].to_numpy()
    assert dict(zip(*(x.tolist() for x in np.unique(ratings, return_counts=True)), strict=True)) == counts
    np.testing.assert_array_equal(labels, ratings > 5)

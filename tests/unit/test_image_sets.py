"""The image sets from every form they are handed on in: the same arrays, or one clear error."""

import dataclasses
import errno
import hashlib
import io
import itertools
import json
import os
import pickle
import struct
import tarfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from director.data import cifar, lsun, svhn
from director.data.cifar import Batch, fetch_cifar, read_folder
from director.data.cifar10 import CIFAR10
from director.data.cifar100 import CIFAR100
from director.data.cifar_pickles import read_batch
from director.data.dataset import Dataset
from director.data.images import decode_image
from director.data.sources import content_digest
from director.data.splits import balanced_split
from director.errors import AccessError, InputError

ARCHIVES = {"binary": 0, "python": 1}


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def planes(images):
    return images.transpose(0, 3, 1, 2).reshape(len(images), 3072)


def binary_batch(images, labels, label_bytes):
    return np.column_stack([labels.astype(np.uint8)] * label_bytes + [planes(images)]).tobytes()


def python_batch(images, labels, names, title, key):
    """A batch as the publisher's Python 2 wrote it, byte for byte (the official files' MD5 sums prove it)."""
    out, memo = bytearray(), itertools.count(1)

    def put():
        number = next(memo)
        out.extend(b"q" + bytes([number]) if number < 256 else b"r" + struct.pack("<I", number))

    def text(content, known=True):
        out.extend(b"U" + bytes([len(content)]) if len(content) < 256 else b"T" + struct.pack("<i", len(content)))
        out.extend(content)
        if known:
            put()

    def integer(value):
        out.extend(b"K" + bytes([value]) if value < 256 else b"M" + struct.pack("<H", value))

    def items(values, write):
        out.extend(b"]")
        put()
        for start in range(0, len(values), 1000):
            out.extend(b"(")
            for value in values[start : start + 1000]:
                write(value)
            out.extend(b"e")

    def word(opcodes):
        out.extend(opcodes)
        put()

    word(b"\x80\x02}")
    out.extend(b"(")
    text(b"batch_label")
    text(title)
    text(key)
    items(labels.tolist(), integer)
    text(b"data")
    word(b"cnumpy.core.multiarray\n_reconstruct\n")
    word(b"cnumpy\nndarray\n")
    out.extend(b"K\x00\x85")
    text(b"b", known=False)
    out.extend(b"\x87")
    word(b"R")
    out.extend(b"(K\x01")
    integer(len(images))
    integer(3072)
    out.extend(b"\x86")
    word(b"cnumpy\ndtype\n")
    text(b"u1", known=False)
    out.extend(b"K\x00K\x01\x87")
    word(b"R")
    out.extend(b"(K\x03")
    text(b"|", known=False)
    out.extend(b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89")
    text(planes(images).tobytes(), known=False)
    out.extend(b"tb")
    text(b"filenames")
    items(names, text)
    out.extend(b"u.")
    return bytes(out)


def encoded(image, form="PNG", **options):
    file = io.BytesIO()
    Image.fromarray(image).save(file, form, **options)
    return file.getvalue()


def write_strips(path, images, labels, per_strip=3):
    files = [
        encoded(images[start : start + per_strip].reshape(-1, 32, 3), "WEBP", lossless=True, exact=True)
        for start in range(0, len(images), per_strip)
    ]
    offsets = np.cumsum([0, *map(len, files)])
    np.savez(path, webp=np.frombuffer(b"".join(files), np.uint8), offsets=offsets, labels=labels.astype(np.uint8))


def write_parquet(path, images, labels, image="img", label="label"):
    """As the hub writes it: the kind of the image column in the metadata."""
    import pyarrow
    import pyarrow.parquet

    rows = [{"bytes": encoded(one), "path": None} for one in images]
    kind = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    table = pyarrow.table({image: pyarrow.array(rows, kind), label: pyarrow.array(labels, pyarrow.int64())})
    features = {image: {"_type": "Image"}, label: {"dtype": "int64", "_type": "Value"}}
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(table, path)


class Small:
    """A set laid out as one of the two, with 20 train and 4 test images of 4 classes, in every form."""

    def __init__(self, like, root: Path):
        rng = np.random.default_rng(0)
        labels = np.concatenate([rng.permutation(np.repeat(np.arange(4), 5)), rng.permutation(4)])
        self.root, self.labels = root, labels
        self.images = rng.integers(0, 256, (24, 32, 32, 3)).astype(np.uint8)
        place, parts = 0, {}
        self.rows = {"train": np.arange(20), "test": np.arange(20, 24)}
        for part, batches in like.parts.items():
            parts[part] = ()
            for batch in batches:
                count = len(self.rows[part]) // len(batches)
                rows = slice(place, place := place + count)
                binary = binary_batch(self.images[rows], labels[rows], like.label_bytes)
                names = [b"image_%d.png" % row for row in range(count)]
                python = python_batch(self.images[rows], labels[rows], names, b"some", like.label_key.encode())
                self.write(f"binary/{like.name}/{like.binary}/{batch.name}.bin", binary)
                self.write(f"python/{like.name}/{like.python}/{batch.name}", python)
                known = md5(binary) if batch.binary_md5 else None
                parts[part] += (Batch(batch.name, count, known, md5(python)),)
        archives = {}
        for form, place in ARCHIVES.items():
            name = list(like.archives)[place]
            inner = (like.binary, like.python)[place]
            (root / f"{form} archive").mkdir()
            with tarfile.open(root / f"{form} archive" / name, "w:gz") as tar:
                tar.add(root / form / like.name / inner, inner)
            archives[name] = md5((root / f"{form} archive" / name).read_bytes())
        for part, rows in self.rows.items():
            path = root / "parquet" / like.name / like.config / f"{part}-00000-of-00001.parquet"
            write_parquet(path, self.images[rows], labels[rows], label=like.label_column)
            (root / "strips" / like.name).mkdir(parents=True, exist_ok=True)
            write_strips(root / "strips" / like.name / f"{part}.npz", self.images[rows], labels[rows])
        unordered = {
            part: content_digest(
                labels[self.rows[part]], (one.tobytes() for one in self.images[self.rows[part]]), False
            )
            for part in like.unordered
        }
        self.layout = dataclasses.replace(like, classes=4, parts=parts, archives=archives, unordered=unordered)

    def write(self, path, content):
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_bytes(content)

    def folder(self, form):
        inside = self.root / form / self.layout.name
        return inside if inside.is_dir() else self.root / form


FORMS = ["binary", "python", "parquet", "strips", "binary archive", "python archive"]


@pytest.fixture(params=[CIFAR10, CIFAR100], ids=lambda layout: layout.name)
def small(request, tmp_path):
    return Small(request.param, tmp_path / "forms")


@pytest.fixture
def ten(tmp_path):
    return Small(CIFAR10, tmp_path / "forms")


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """No folder, no hub, no publisher; downloads go into the test's folder."""
    import datasets.config

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DIRECTOR_DATA", raising=False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(cifar, "PUBLISHER", "http://127.0.0.1:1")
    monkeypatch.setattr(svhn, "URL", f"http://127.0.0.1:1/{svhn.MAT}")


def fingerprint(dataset, folder):
    dataset.save(folder)
    return Dataset.load(folder).about["fingerprint"]


def test_every_form_gives_the_same_arrays(small, tmp_path):
    found = {form: read_folder(small.layout, small.folder(form)) for form in FORMS}
    for dataset in found.values():
        np.testing.assert_array_equal(dataset.inputs, small.images)
        np.testing.assert_array_equal(dataset.labels, small.labels)
        assert dataset.labels.dtype == np.int64 and dataset.about["parts"] == {"train": 20, "test": 4}
        assert dataset.about["generated"] is False and dataset.about["licence"] and dataset.about["citation"]
    assert len({fingerprint(dataset, tmp_path / form) for form, dataset in found.items()}) == 1
    assert len({dataset.about["source"] for dataset in found.values()}) == 4


def test_the_hub_gives_the_same_arrays(small, nowhere):
    repository, config = small.folder("parquet"), small.layout.config
    files = [{"split": part, "path": f"{config}/{part}-*.parquet"} for part in small.rows]
    card = json.dumps({"configs": [{"config_name": config, "data_files": files}]})
    (repository / "README.md").write_text(f"---\n{card}\n---\n")
    dataset = fetch_cifar(dataclasses.replace(small.layout, repository=str(repository)))
    np.testing.assert_array_equal(dataset.inputs, small.images)
    np.testing.assert_array_equal(dataset.labels, small.labels)


def test_the_publisher_gives_the_same_arrays(small, nowhere, monkeypatch):
    monkeypatch.setattr(cifar, "PUBLISHER", (small.root / "binary archive").as_uri())
    dataset = fetch_cifar(small.layout)
    np.testing.assert_array_equal(dataset.inputs, small.images)
    assert [path.suffix for path in Path("data/downloads").rglob("*.*")] == [".gz"]


def test_a_folder_goes_before_hub_and_publisher(ten, nowhere, monkeypatch):
    monkeypatch.setenv("DIRECTOR_DATA", f"{ten.root / 'strips'}")
    assert fetch_cifar(ten.layout).about["source"] == "WebP strips"


def test_batches_in_another_order_are_put_right(ten, tmp_path):
    """A copy made by walking through the publisher's archive has them in the order of the tar file."""
    order = np.concatenate([np.arange(4) + 4 * batch for batch in (3, 2, 1, 4, 0)])
    write_strips(tmp_path / "forms/strips/cifar10/train.npz", ten.images[order], ten.labels[order])
    dataset = read_folder(ten.layout, ten.folder("strips"))
    np.testing.assert_array_equal(dataset.inputs, ten.images)
    np.testing.assert_array_equal(dataset.labels, ten.labels)
    order[:4] = order[4:8]
    write_strips(tmp_path / "forms/strips/cifar10/train.npz", ten.images[order], np.sort(ten.labels[:20]))
    with pytest.raises(InputError, match="not one of the publisher's batches"):
        read_folder(ten.layout, ten.folder("strips"))


def test_files_of_another_set_are_not_taken(tmp_path):
    """`train.npz` says nothing of what it holds: it counts only in a folder of the set's name."""
    small = Small(CIFAR10, tmp_path)
    hundred = dataclasses.replace(small.layout, name="cifar100")
    for form in ("strips", "parquet"):
        assert read_folder(hundred, small.folder(form)) is None


def test_nothing_anywhere_names_three_ways(small, nowhere):
    with pytest.raises(InputError) as error:
        fetch_cifar(small.layout)
    for words in (small.layout.binary, "DIRECTOR_DATA", small.layout.repository, "http://127.0.0.1:1/", "(3)"):
        assert words in str(error.value)


def test_the_test_part_alone_is_enough_for_cifar100_only(tmp_path):
    for like in (CIFAR100, CIFAR10):
        small = Small(like, tmp_path / like.name)
        (small.folder("strips") / "train.npz").unlink()
        if like is CIFAR10:
            with pytest.raises(InputError, match=r"cifar10: the train part is missing beside .*test\.npz"):
                read_folder(small.layout, small.folder("strips"))
            continue
        dataset = read_folder(small.layout, small.folder("strips"))
        assert dataset.about["parts"] == {"test": 4} and "test part only" in dataset.about["note"]
        np.testing.assert_array_equal(dataset.inputs, small.images[20:])
        with pytest.raises(InputError, match="train part is missing"):
            balanced_split(dataset, 2, 2, seed=0)


PATHS = {
    "binary": "cifar-10-batches-bin/data_batch_2.bin",
    "python": "cifar-10-batches-py/data_batch_2",
    "parquet": "plain_text/train-00000-of-00001.parquet",
    "strips": "train.npz",
    "binary archive": "cifar-10-binary.tar.gz",
}


@pytest.mark.parametrize("harm", ["empty", "truncated"])
@pytest.mark.parametrize("form", PATHS)
def test_a_damaged_file_is_named(ten, form, harm):
    path = ten.folder(form) / PATHS[form]
    path.write_bytes(b"" if harm == "empty" else path.read_bytes()[:-50])
    with pytest.raises(InputError, match=rf"{path.name}.*take the publisher's file") as error:
        read_folder(ten.layout, ten.folder(form))
    assert "delete" not in str(error.value)  # it is the user's


@pytest.mark.parametrize("form", ["binary", "python"])
def test_a_missing_batch_is_named(ten, form):
    path = ten.folder(form) / PATHS[form]
    path.unlink()
    with pytest.raises(InputError, match=rf"{path.name} is missing beside the other batches"):
        read_folder(ten.layout, ten.folder(form))


def test_a_changed_pixel_is_found_in_every_form(ten):
    path = ten.folder("binary") / PATHS["binary"]
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match="images 4 to 7 are not one of the publisher's batches"):
        read_folder(ten.layout, ten.folder("binary"))


@pytest.fixture
def hundred(tmp_path):
    return Small(CIFAR100, tmp_path / "forms")


@pytest.mark.parametrize("form", ["binary", "parquet", "strips"])
def test_a_changed_pixel_of_the_test_part_of_cifar100_is_found_in_every_form(hundred, form):
    """Its order is not known, so its content is compared in any: another order is the same set, another pixel not."""
    images, labels = hundred.images[20:], hundred.labels[20:]

    def write(images, labels):
        if form == "binary":
            path = hundred.folder(form) / "cifar-100-binary/test.bin"
            path.write_bytes(binary_batch(images, labels, 2))
        elif form == "parquet":
            path = hundred.folder(form) / "cifar100/test-00000-of-00001.parquet"
            write_parquet(path, images, labels, label="fine_label")
        else:
            write_strips(hundred.folder(form) / "test.npz", images, labels)

    write(images[::-1], labels[::-1])
    np.testing.assert_array_equal(read_folder(hundred.layout, hundred.folder(form)).inputs[20:], images[::-1])
    changed = images.copy()
    changed[2, 5, 5, 0] ^= 1
    write(changed, labels)
    with pytest.raises(InputError, match=r"test(|-0.*|\.\w+): not the published content"):
        read_folder(hundred.layout, hundred.folder(form))
    write(images, labels[::-1])
    with pytest.raises(InputError, match=r"test(|-0.*|\.\w+): not the published content"):
        read_folder(hundred.layout, hundred.folder(form))


def test_what_could_not_be_compared_is_written_down(hundred):
    """No whole CIFAR-100 was at hand to take a checksum of its train part from; files with an MD5 need none."""
    words = "content of the train part not compared: no checksum of this form is known"
    for form in FORMS:
        compared = form == "python" or form.endswith("archive")
        note = read_folder(hundred.layout, hundred.folder(form)).about.get("note")
        assert note == (None if compared else words), form


@pytest.mark.parametrize(
    "name", ["cifar10", "CIFAR-10", "cifar_10", "cifar-10-batches-py", "cifar10/cifar-10-batches-py", "CIFAR10/CIFAR10"]
)
def test_batches_are_found_under_the_names_their_folder_has(ten, nowhere, monkeypatch, name):
    """In the folder that DIRECTOR_DATA names, and as that folder itself."""
    (ten.root / "data" / name).parent.mkdir(parents=True)
    (ten.root / "python/cifar10/cifar-10-batches-py").rename(ten.root / "data" / name)
    for below in ["data", f"data/{name}"][name == "CIFAR10/CIFAR10" :]:
        monkeypatch.setenv("DIRECTOR_DATA", str(ten.root / below))
        assert fetch_cifar(ten.layout).about["source"] == "publisher's Python batches"


def test_a_folder_without_a_batch_is_passed_over_with_a_word(ten, nowhere, monkeypatch, caplog):
    empty = ten.root / "data/cifar-10-batches-py"
    empty.mkdir(parents=True)
    monkeypatch.setenv("DIRECTOR_DATA", f"{empty.parent}:{ten.root / 'strips'}")
    assert fetch_cifar(ten.layout).about["source"] == "WebP strips"
    assert f"{empty} is not used: it has no form of cifar10 that is read" in caplog.text


def test_an_archive_whose_download_kept_the_end_of_the_address(ten):
    (archive,) = (ten.root / "python archive").iterdir()
    archive.rename(archive.with_name(f"{archive.name}?download=1"))
    assert len(read_folder(ten.layout, archive.parent)) == 24


def rewrite(small, form, images, labels, **columns):
    path = small.folder(form) / PATHS[form]
    write_strips(path, images, labels) if form == "strips" else write_parquet(path, images, labels, **columns)
    with pytest.raises(InputError) as error:
        read_folder(small.layout, small.folder(form))
    assert path.name in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("form", ["strips", "parquet"])
def test_wrong_content_is_named(ten, form):
    images, labels = ten.images[:20], ten.labels[:20]
    assert "19 images, not the 20 of the train part" in rewrite(ten, form, images[:19], labels[:19])
    assert "label 7 in row 2 is not in 0..3" in rewrite(ten, form, images, np.where(np.arange(20) == 2, 7, labels))
    assert "6 images of class 0, not 5" in rewrite(ten, form, images, np.repeat([0, 1, 2, 3], [6, 5, 5, 4]))


def test_wrong_columns_and_sizes_are_named(ten):
    images, labels = ten.images[:20], ten.labels[:20]
    assert "no column label among img, fine_label" in rewrite(ten, "parquet", images, labels, label="fine_label")
    assert "no column img among image, label" in rewrite(ten, "parquet", images, labels, image="image")
    one_small = [*images[:3], images[3][:31], *images[4:]]
    assert "image in row 3 has 32x31 pixels" in rewrite(ten, "parquet", one_small, labels)


def test_files_that_do_not_belong_together_are_named(ten):
    folder = ten.folder("parquet") / ten.layout.config
    (folder / "train-00000-of-00001.parquet").rename(folder / "train-00000-of-00002.parquet")
    write_parquet(folder / "train-00001-of-00002.parquet", ten.images[:2], ten.labels[:2], label="other")
    with pytest.raises(InputError, match=r"train-00001-of-00002\.parquet: the files differ in their columns"):
        read_folder(ten.layout, ten.folder("parquet"))


def test_an_archive_that_reaches_outside_is_refused(ten):
    name = "cifar-10-binary.tar.gz"
    path = ten.root / "binary archive" / name
    with tarfile.open(path, "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("../x"))
    layout = dataclasses.replace(ten.layout, archives={name: md5(path.read_bytes())})
    with pytest.raises(InputError, match=r"\.\./x would be written outside its folder"):
        read_folder(layout, path.parent)


class Command:
    def __reduce__(self):
        return print, ("run",)


def test_a_pickle_is_opened_only_for_its_checksum_and_calls_nothing(tmp_path, capsys):
    path = tmp_path / "data_batch_1"
    path.write_bytes(pickle.dumps({"data": Command(), "labels": []}, protocol=2))
    with pytest.raises(InputError, match=r"data_batch_1: MD5 .*, not the publisher's 0+"):
        read_batch(path, "0" * 32, "labels")
    with pytest.raises(InputError, match=r"data_batch_1: .*in place of pixels, __builtin__ print"):
        read_batch(path, md5(path.read_bytes()), "labels")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("content", [{"labels": []}, [1], 7, {"data": b"", "labels": []}, {"data": 1.5}], ids=str)
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_another_pickle_is_no_batch(tmp_path, content, protocol):
    path = tmp_path / "data_batch_1"
    for whole in (pickle.dumps(content, protocol), pickle.dumps(content, protocol)[:-2]):
        path.write_bytes(whole)
        with pytest.raises(InputError, match="data_batch_1: not a batch of images"):
            read_batch(path, md5(whole), "labels")


def test_cifar10_is_the_publishers(shared):
    """All 60,000 images: fetching compares the MD5 of each batch, written as binary, with the official file's."""
    dataset = read_folder(CIFAR10, shared / "data/cifar10")
    assert dataset.inputs.shape == (60_000, 32, 32, 3) and dataset.about["parts"] == {"train": 50_000, "test": 10_000}
    assert dataset.labels[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    assert dataset.labels[50_000:50_010].tolist() == [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]
    assert dataset.inputs[0, 0, 0].tolist() == [59, 62, 63] and dataset.inputs[50_000, 0, 0].tolist() == [158, 112, 49]


def test_the_official_python_batch_is_read(shared, tmp_path):
    part = cifar._strips(CIFAR10, shared / "data/cifar10", "test")
    with np.load(shared / "data/cifar10/test.npz") as file:
        names = file["names"].tolist()
    path = tmp_path / "test_batch"
    path.write_bytes(python_batch(part.images, part.labels, names, b"testing batch 1 of 1", b"labels"))
    pixels, labels = read_batch(path, CIFAR10.parts["test"][0].python_md5, "labels")
    np.testing.assert_array_equal(pixels, planes(part.images))
    np.testing.assert_array_equal(labels, part.labels)


def test_cifar100_test_part(shared):
    dataset = read_folder(CIFAR100, shared / "data/cifar100")
    assert dataset.inputs.shape == (10_000, 32, 32, 3) and dataset.about["parts"] == {"test": 10_000}
    assert (np.bincount(dataset.labels) == 100).all()


def test_svhn_fixture(shared):
    dataset = svhn.read_folder(shared / "data/svhn")
    assert dataset.inputs.shape == (50, 32, 32, 3) and "fixture of 50" in dataset.about["note"]
    assert dataset.labels.min() == 0 and dataset.labels.max() == 9


@pytest.fixture
def digits(tmp_path, monkeypatch):
    """40 digits, at least two of each, as .mat and as Parquet; the first two of each are taken."""
    from scipy.io import savemat

    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (40, 32, 32, 3)).astype(np.uint8)
    labels = rng.permutation(np.repeat(np.arange(10), 4))
    folder = tmp_path / "mat"
    folder.mkdir()
    savemat(folder / svhn.MAT, {"X": images.transpose(1, 2, 3, 0), "y": np.where(labels == 0, 10, labels)[:, None]})
    write_parquet(tmp_path / "svhn/cropped_digits/test-00000-of-00001.parquet", images, labels, image="image")
    monkeypatch.setattr(svhn, "COUNT", 40)
    monkeypatch.setattr(svhn, "OF_EACH", 2)
    monkeypatch.setattr(svhn, "MD5", md5((folder / svhn.MAT).read_bytes()))
    return tmp_path, images, labels


def test_svhn_takes_the_first_of_each_digit_in_order(digits, tmp_path):
    root, images, labels = digits
    rows = [row for row in range(40) if (labels[:row] == labels[row]).sum() < 2]
    found = [svhn.read_folder(root / folder) for folder in ("mat", "svhn")]
    for dataset in found:
        np.testing.assert_array_equal(dataset.inputs, images[rows])
        np.testing.assert_array_equal(dataset.labels, labels[rows])
    assert fingerprint(found[0], tmp_path / "a") == fingerprint(found[1], tmp_path / "b")


def test_damaged_svhn_is_named(digits, monkeypatch):
    root, *_ = digits
    path = root / "mat" / svhn.MAT
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(InputError, match=r"test_32x32\.mat: MD5"):
        svhn.read_folder(root / "mat")
    monkeypatch.setattr(svhn, "COUNT", 41)
    with pytest.raises(InputError, match=r"test-00000-of-00001\.parquet: 40 images, not 41"):
        svhn.read_folder(root / "svhn")


def test_svhn_says_which_form_could_not_be_compared(digits):
    root, *_ = digits
    assert "note" not in svhn.read_folder(root / "mat").about
    assert "content not compared" in svhn.read_folder(root / "svhn").about["note"]


@pytest.mark.parametrize("name", ["SVHN", "svhn", "SVHN/cropped_digits", "cropped_digits"])
def test_svhn_is_found_under_the_names_it_has(digits, nowhere, monkeypatch, name):
    root, *_ = digits
    (root / "data" / name).parent.mkdir(parents=True)
    (root / "svhn/cropped_digits").rename(root / "data" / name)
    for below in ("data", f"data/{name}"):
        monkeypatch.setenv("DIRECTOR_DATA", str(root / below))
        assert len(svhn.fetch({})) == 20


def test_svhn_from_its_publisher(digits, nowhere, monkeypatch):
    monkeypatch.setattr(svhn, "URL", (digits[0] / "mat" / svhn.MAT).as_uri())
    assert len(svhn.fetch({})) == 20
    assert Path("data/downloads/svhn", svhn.MAT).is_file()


def test_svhn_nowhere_names_three_ways(nowhere):
    with pytest.raises(InputError, match=r"test_32x32\.mat.*DIRECTOR_DATA.*ufldl-stanford/svhn.*\(3\) .*127\.0\.0\.1"):
        svhn.fetch({})


def test_lsun_images_are_scaled_in_the_order_of_their_names(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3)).astype(np.uint8)
    folder = tmp_path / "lsun"
    folder.mkdir()
    for name, image in zip(("b.png", "a.webp"), images[:2], strict=True):
        (folder / name).write_bytes(encoded(image, Path(name).suffix[1:], lossless=True))
    large = Image.fromarray(images[2]).resize((70, 45))
    large.save(folder / "c.png")
    (folder / "notes.txt").write_text("not an image")
    dataset = lsun.read_folder(folder)
    assert dataset.labels is None and dataset.about["parts"] == {"test": 3}
    np.testing.assert_array_equal(dataset.inputs[:2], images[[1, 0]])
    np.testing.assert_array_equal(dataset.inputs[2], np.asarray(large.resize((32, 32), Image.Resampling.BICUBIC)))


def test_lsun_array(tmp_path, monkeypatch):
    monkeypatch.setattr(lsun, "AT_MOST", 3)
    images = np.random.default_rng(0).integers(0, 256, (5, 32, 32, 3)).astype(np.uint8)
    np.savez(tmp_path / "lsun.npz", images=images)
    np.testing.assert_array_equal(lsun.read_folder(tmp_path).inputs, images[:3])


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.png", b"", r"a\.png: not a whole image"),
        ("a.png", encoded(np.zeros((31, 32, 3), np.uint8)), r"a\.png: 32x31 pixels, smaller than 32x32"),
        ("lsun.npz", b"PK\x03\x04", r"lsun\.npz: not an \.npz file with an array `images`"),
    ],
)
def test_damaged_lsun_is_named(tmp_path, name, content, words):
    (tmp_path / "lsun").mkdir()
    (tmp_path / "lsun" / name).write_bytes(content)
    with pytest.raises(InputError, match=words):
        lsun.read_folder(tmp_path / "lsun")


def test_lsun_of_wrong_numbers_is_named(tmp_path):
    np.savez(tmp_path / "lsun.npz", images=np.zeros((2, 32, 32, 3)))
    with pytest.raises(InputError, match=r"images are float64 \(2, 32, 32, 3\), not uint8"):
        lsun.read_folder(tmp_path)


def test_lsun_nowhere_says_how_to_get_it(nowhere):
    with pytest.raises(InputError, match=r"\(1\) put images .*lsun\.npz.*DIRECTOR_DATA.*no download"):
        lsun.fetch({})


def test_lsun_in_capitals_and_named_directly(tmp_path, monkeypatch):
    (tmp_path / "LSUN").mkdir()
    (tmp_path / "LSUN/a.png").write_bytes(encoded(np.zeros((32, 32, 3), np.uint8)))
    for named in (tmp_path, tmp_path / "LSUN"):
        monkeypatch.setenv("DIRECTOR_DATA", str(named))
        assert len(lsun.fetch({})) == 1


# -- images of every kind ----------------------------------------------------------------------------------------------

RAMP = np.arange(32 * 32, dtype=np.uint16).reshape(32, 32) * 64  # 0 to 65,472
DEEP = {
    "16-bit": (Image.fromarray(RAMP), "PNG"),
    "32-bit": (Image.fromarray(RAMP.astype(np.int32)), "TIFF"),
    "floating-point": (Image.fromarray(RAMP.astype(np.float32) / 65535), "TIFF"),
}


def in_lsun(folder, image, form):
    (folder / "lsun").mkdir()
    image.save(folder / "lsun/a.png", form)  # Pillow goes by the content, not by the name
    return r"lsun/a\.png", lambda: lsun.read_folder(folder / "lsun")


def in_parquet(folder, image, form):
    import pyarrow

    image.save(file := io.BytesIO(), form)
    table = pyarrow.table({"img": [{"bytes": file.getvalue()}], "label": [0]})
    return "somewhere: row 0 of column img", lambda: cifar.decode_table("somewhere", table, "img", "label")


@pytest.mark.parametrize("place", [in_lsun, in_parquet])
@pytest.mark.parametrize("levels", DEEP)
def test_images_of_more_than_8_bits_are_refused_by_name(tmp_path, levels, place):
    """Pillow makes them white (16 bits) or black (floating-point) without a word."""
    where, read = place(tmp_path, *DEEP[levels])
    with pytest.raises(InputError, match=rf"{where}: {levels} grey levels.*save it with 8 bits"):
        read()


@pytest.mark.parametrize("place", [in_lsun, in_parquet])
def test_an_image_too_large_to_open_is_refused_by_name(tmp_path, place, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 500)  # it opens up to twice as many
    where, read = place(tmp_path, Image.new("RGB", (32, 32)), "PNG")
    with pytest.raises(InputError, match=rf"{where}: too large.*fewer pixels"):
        read()


def test_a_photograph_of_frost_too_large_to_open_is_refused_by_name(tmp_path, monkeypatch):
    from director.data.corruptions import FROST, read_photographs

    for name in FROST:
        Image.new("RGB", (200, 200)).save(tmp_path / name)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 500)
    with pytest.raises(InputError, match=r"frost1\.png: too large"):
        read_photographs(tmp_path)


COLOURS = np.random.default_rng(0).integers(0, 256, (8, 8, 3)).astype(np.uint8)


def test_grey_levels_palettes_and_transparency(tmp_path):
    """Transparent images keep the colours that they store, whatever would shine through."""
    colours, alpha = Image.fromarray(COLOURS), Image.fromarray(np.full((8, 8), 7, np.uint8))
    grey = colours.convert("L")
    with_alpha = {"RGBA": colours.copy(), "LA": grey.copy()}
    for image in with_alpha.values():
        image.putalpha(alpha)
    palette = colours.quantize(256)
    see_through = palette.copy()
    see_through.info["transparency"] = 0
    greys = np.repeat(np.asarray(grey)[..., None], 3, axis=2)
    expected = [
        (colours, COLOURS),
        (grey, greys),
        (with_alpha["RGBA"], COLOURS),
        (with_alpha["LA"], greys),
        (palette, COLOURS),
        (see_through, COLOURS),
        (colours.convert("1"), np.asarray(colours.convert("1").convert("RGB"))),
    ]
    for image, pixels in expected:
        image.save(tmp_path / "a.png")
        np.testing.assert_array_equal(decode_image(tmp_path / "a.png", "a.png"), pixels, err_msg=image.mode)


def test_colours_of_16_bits_keep_their_upper_byte(tmp_path):
    def chunk(kind, content):
        body = kind + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))

    pixels = np.array([[[0x12FF, 0x8000, 0xFF01]]], ">u2")
    header = struct.pack(">IIBBBBB", 1, 1, 16, 2, 0, 0, 0)
    image = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" + pixels.tobytes())) + chunk(b"IEND", b"")
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + image)
    assert decode_image(tmp_path / "a.png", "a.png").tolist() == [[[0x12, 0x80, 0xFF]]]


def test_a_broken_chunk_and_a_folder_in_place_of_an_image_are_named(tmp_path):
    content = bytearray(encoded(COLOURS))
    content[content.index(b"IDAT") + 6] ^= 0xFF
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(InputError, match=r"a\.png: not a whole image"):
        decode_image(tmp_path / "a.png", "a.png")
    (tmp_path / "b.png").mkdir()
    with pytest.raises(AccessError, match=r"b\.png: is a directory"):
        decode_image(tmp_path / "b.png", "b.png")
    with pytest.raises(AccessError, match=r"c\.png: no such file"):
        decode_image(tmp_path / "c.png", "c.png")


# -- what the system refuses is not what the file holds ---------------------------------------------------------------


def test_a_disk_that_fails_is_not_taken_for_a_damaged_file(ten, monkeypatch):
    """EIO, as a network file system gives it, in each reader."""

    def failing(*words, **options):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(np, "load", failing)
    monkeypatch.setattr(np, "fromfile", failing)
    monkeypatch.setattr("pyarrow.parquet.read_table", failing)
    monkeypatch.setattr(Path, "read_bytes", failing)
    for form in FORMS:
        with pytest.raises(AccessError, match="input/output error; check the disk"):
            read_folder(ten.layout, ten.folder(form))

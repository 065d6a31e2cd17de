"""Folders, hub, publisher: the order of the sources, downloads that were interrupted, archives that misbehave."""

import errno
import hashlib
import io
import os
import shutil
import tarfile
import tempfile
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from director.data.sources import (
    Unavailable,
    content_digest,
    download,
    first_of,
    from_folders,
    from_hub,
    local_folders,
    unpack,
    unpacked,
    verify,
    verify_content,
)
from director.errors import AccessError, InputError

CONTENT = bytes(range(256)) * 40
MD5 = hashlib.md5(CONTENT).hexdigest()


class Publisher(BaseHTTPRequestHandler):
    """Serves CONTENT under any path; /plain ignores ranges, /breaks closes after 1,000 bytes, /missing has nothing."""

    def do_GET(self):
        self.server.ranges.append(self.headers.get("Range"))
        start = 0
        if self.headers.get("Range") and self.path != "/plain":
            start = int(self.headers["Range"].removeprefix("bytes=").removesuffix("-"))
        if self.path == "/missing" or start >= len(CONTENT):
            self.send_error(404 if self.path == "/missing" else 416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(CONTENT) - start))
        self.end_headers()
        self.wfile.write(CONTENT[start : start + 1000] if self.path == "/breaks" else CONTENT[start:])

    def log_message(self, *words):
        pass


@pytest.fixture(scope="module")
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Publisher) as running:
        running.ranges = []
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def url(server):
    server.ranges.clear()
    return f"http://127.0.0.1:{server.server_port}"


def test_download_is_complete_and_not_repeated(url, server, tmp_path):
    target = tmp_path / "new" / "file.bin"
    assert download(f"{url}/file", target, md5=MD5, size=len(CONTENT)) == target
    assert target.read_bytes() == CONTENT and not list(tmp_path.rglob("*.part"))
    download(f"{url}/file", target, md5=MD5)
    assert server.ranges == [None]


def test_download_goes_on_where_it_broke_off(url, server, tmp_path):
    target, part = tmp_path / "file.bin", tmp_path / "file.bin.part"
    with pytest.raises(Unavailable, match=r"broke off after 1,000 of 10,240 bytes; run again to continue"):
        download(f"{url}/breaks", target, md5=MD5)
    assert not target.exists() and part.read_bytes() == CONTENT[:1000]
    assert download(f"{url}/file", target, md5=MD5).read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=1000-"] and not part.exists()


def test_download_starts_anew_where_the_server_ignores_ranges(url, server, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:500])
    assert download(f"{url}/plain", tmp_path / "file.bin", md5=MD5).read_bytes() == CONTENT
    assert server.ranges == ["bytes=500-"]


@pytest.mark.parametrize("part", [b"of something else", CONTENT + b"too long"])
def test_a_foreign_part_is_thrown_away(url, server, tmp_path, part):
    (tmp_path / "file.bin.part").write_bytes(part)
    assert download(f"{url}/file", tmp_path / "file.bin", md5=MD5).read_bytes() == CONTENT
    assert server.ranges == [f"bytes={len(part)}-", None]


def test_a_whole_part_is_taken(url, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(CONTENT)
    assert download(f"{url}/file", tmp_path / "file.bin", md5=MD5).read_bytes() == CONTENT


def test_a_part_that_no_checksum_can_judge_is_not_continued(url, server, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(b"of an older version")
    assert download(f"{url}/file", tmp_path / "file.bin").read_bytes() == CONTENT
    assert server.ranges == [None]


def test_wrong_content_never_becomes_data(url, tmp_path):
    target = tmp_path / "file.bin"
    with pytest.raises(InputError, match=rf"file\.bin\.part: MD5 {MD5}, not 0+") as error:
        download(f"{url}/file", target, md5="0" * 32)
    assert not isinstance(error.value, Unavailable)
    with pytest.raises(InputError, match="10,240 bytes, not 7"):
        download(f"{url}/file", target, size=7)
    assert not list(tmp_path.iterdir())


def test_a_damaged_file_that_is_there_is_named(tmp_path):
    (tmp_path / "file.bin").write_bytes(CONTENT[:-1])
    with pytest.raises(InputError, match=r"file\.bin: MD5 .* delete it"):
        download("http://127.0.0.1:1/file", tmp_path / "file.bin", md5=MD5)


def test_a_file_of_the_users_is_not_called_damaged_nor_to_be_deleted(tmp_path):
    (tmp_path / "file.bin").write_bytes(CONTENT[:-1])
    for known in ({"md5": MD5}, {"size": len(CONTENT)}):
        with pytest.raises(InputError, match="take the publisher's file") as error:
            verify(tmp_path / "file.bin", **known)
        assert "delete" not in str(error.value) and "damaged" not in str(error.value)


def test_a_file_that_is_not_there_is_not_one_of_another_content(tmp_path):
    with pytest.raises(AccessError, match=r"file\.bin: no such file or directory"):
        verify(tmp_path / "file.bin", md5=MD5)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
def test_a_full_disk_is_not_a_server_out_of_reach(url, tmp_path):
    """Otherwise the next source is tried, and the last words are about the network."""
    (tmp_path / "file.bin.part").symlink_to("/dev/full")
    with pytest.raises(AccessError, match=r"file\.bin\.part: no space left on device; make room") as error:
        download(f"{url}/file", tmp_path / "file.bin", md5=MD5)
    assert not isinstance(error.value, Unavailable)


def test_a_part_that_cannot_be_read_is_not_thrown_away(url, tmp_path, monkeypatch):
    """Hours of a download, and a disk that fails for a moment."""
    monkeypatch.setattr(hashlib, "file_digest", raising(OSError(errno.EIO, "Input/output error")))
    with pytest.raises(AccessError, match="input/output error"):
        download(f"{url}/file", tmp_path / "file.bin", md5=MD5)
    assert (tmp_path / "file.bin.part").read_bytes() == CONTENT


@pytest.mark.parametrize("address", ["{url}/missing", "http://127.0.0.1:1/file"])
def test_a_publisher_that_cannot_give_it_is_unavailable(url, tmp_path, address):
    with pytest.raises(Unavailable, match=r"/missing: HTTP Error 404|refused"):
        download(address.format(url=url), tmp_path / "file.bin", md5=MD5)


def test_folders_in_order(tmp_path, monkeypatch):
    (tmp_path / "a" / "cifar10").mkdir(parents=True)
    (tmp_path / "b").mkdir()
    monkeypatch.setenv("DIRECTOR_DATA", os.pathsep.join([str(tmp_path / "a"), "", str(tmp_path / "b")]))
    assert local_folders("cifar10") == [tmp_path / "a" / "cifar10", tmp_path / "a", tmp_path / "b"]
    assert from_folders("cifar10", lambda folder: folder if folder.name == "b" else None) == tmp_path / "b"
    with pytest.raises(Unavailable, match=r"not in .*cifar10"):
        from_folders("cifar10", lambda folder: None)


def test_no_folders(tmp_path, monkeypatch):
    monkeypatch.delenv("DIRECTOR_DATA", raising=False)
    assert local_folders("cifar10") == []
    for nothing in ("", os.pathsep, 2 * os.pathsep):
        monkeypatch.setenv("DIRECTOR_DATA", nothing)
        assert local_folders("cifar10") == []
        with pytest.raises(Unavailable, match="no folder named in DIRECTOR_DATA"):
            from_folders("cifar10", lambda folder: folder)
    monkeypatch.setenv("DIRECTOR_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match="nowhere, which is no folder"):
        local_folders("cifar10")


@pytest.mark.parametrize(
    "value", ["{sep}{here}", "{here}{sep}", "{sep}{here}{sep}{sep}", "{here}/", "{here}//{sep}{here}"]
)
def test_separators_at_the_ends_and_folders_named_twice_add_nothing(tmp_path, monkeypatch, value):
    monkeypatch.setenv("DIRECTOR_DATA", value.format(here=tmp_path, sep=os.pathsep))
    assert local_folders("cifar10") == [tmp_path]


def test_a_folder_may_be_called_as_people_call_the_set(tmp_path, monkeypatch):
    """The set's own name comes first; a file of such a name is no folder, and another set's folder is not taken."""
    for name in ("cifar10_c", "CIFAR-10-C", "cifar10c", "cifar10", "cifar100", "cifar10_c_200"):
        (tmp_path / name).mkdir()
    (tmp_path / "Cifar10-C").touch()
    monkeypatch.setenv("DIRECTOR_DATA", str(tmp_path))
    assert [folder.name for folder in local_folders("cifar10_c")[:-1]] == ["cifar10_c", "CIFAR-10-C", "cifar10c"]
    assert local_folders("cifar10_c")[-1] == tmp_path
    assert [folder.name for folder in local_folders("svhn", "cifar100")[:-1]] == ["cifar100"]


def test_a_folder_named_by_a_dot_keeps_its_name(tmp_path, monkeypatch):
    (tmp_path / "lsun").mkdir()
    monkeypatch.chdir(tmp_path / "lsun")
    monkeypatch.setenv("DIRECTOR_DATA", ".")
    assert local_folders("lsun") == [tmp_path / "lsun"]


def test_a_folder_that_looks_like_a_source_and_is_not_used_is_reported(tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO")
    for name in ("a/SVHN", "b/svhn", "b/Svhn"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.setenv("DIRECTOR_DATA", os.pathsep.join(str(tmp_path / name) for name in "ab"))
    found = from_folders("svhn", lambda folder: folder if folder.name != "SVHN" else None)
    assert [(record.levelname, record.getMessage()) for record in caplog.records][:1] == [
        (
            "WARNING",
            f"svhn: {tmp_path / 'a/SVHN'} is not used: it has no form of svhn that is read (docs/datasets.md)",
        )
    ]
    assert found == tmp_path / "a"  # not called as the set is, but it has a file of its publisher's
    assert f"svhn: from {found}" in caplog.text
    for name in ("b/svhn", "b/Svhn"):
        assert f"{tmp_path / name} is not used, since {found} comes before it" in caplog.text
    assert f"{tmp_path / 'b'} is not used" not in caplog.text


def test_the_folder_around_the_one_that_is_used_is_not_reported(tmp_path, monkeypatch, caplog):
    (tmp_path / "imdb/aclImdb").mkdir(parents=True)
    monkeypatch.setenv("DIRECTOR_DATA", str(tmp_path / "imdb"))
    assert from_folders("imdb", lambda folder: folder, "aclImdb").name == "aclImdb"
    assert not caplog.records


def test_a_folder_that_may_not_be_read_is_said_to_be_that(tmp_path, monkeypatch):
    monkeypatch.setenv("DIRECTOR_DATA", str(tmp_path))
    with pytest.raises(AccessError, match="permission denied; give yourself the permission"):
        from_folders("svhn", lambda folder: raising(PermissionError(errno.EACCES, "Permission denied"))())
    monkeypatch.setattr(Path, "iterdir", lambda path: raising(PermissionError(errno.EACCES, "Permission denied"))())
    with pytest.raises(AccessError, match="permission denied"):
        local_folders("svhn")


def test_content_is_compared_row_by_row_whatever_file_it_was_in():
    rows, labels = [b"one", b"two", b""], [1, 0, 1]
    known = content_digest(labels, rows)
    verify_content("a.tsv", labels, rows, known, remedy="take another")
    others = [([1, 0, 1], [b"one", b"tw", b"o"]), ([1, 1, 0], rows), (labels[::-1], rows[::-1]), (labels[:2], rows[:2])]
    for labels_of_other, other in others:
        with pytest.raises(InputError, match=r"a\.tsv: not the published content, .*; take another"):
            verify_content("a.tsv", labels_of_other, other, known, remedy="take another")
    assert content_digest(labels[::-1], rows[::-1], ordered=False) == content_digest(labels, rows, ordered=False)
    assert content_digest([1, 1, 0], rows, ordered=False) != content_digest(labels, rows, ordered=False)


def raising(error):
    def attempt(*words, **options):
        raise error

    return attempt


def test_the_first_source_that_has_it_wins():
    attempts = {"a": raising(Unavailable("not a")), "b": lambda: "found", "c": raising(AssertionError("asked"))}
    assert first_of("x", attempts) == "found"


def test_when_no_source_has_it_every_way_is_named_once():
    attempts = {way: raising(Unavailable(f"no {way}")) for way in ("folder", "hub", "publisher")}
    with pytest.raises(InputError) as error:
        first_of("x", attempts)
    assert str(error.value).endswith("(1) folder [no folder]; (2) hub [no hub]; (3) publisher [no publisher]")
    assert not isinstance(error.value, Unavailable)


def test_damage_is_not_passed_over():
    with pytest.raises(InputError, match="truncated"):
        first_of("x", {"folder": raising(InputError("a.bin: truncated")), "hub": lambda: "found"})


def table(path, rows=5):
    import pyarrow
    import pyarrow.parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(
        pyarrow.table({"text": ["a", "b", "c", "d", "e"][:rows], "label": [0, 1, 0, 1, 0][:rows]}), path
    )


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub without a network, its cache in a folder of the test; a repository may be a folder as well."""
    import datasets.config

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path / "repository"


def test_a_repository_is_read(hub):
    table(hub / "train-00000-of-00001.parquet")
    table(hub / "test-00000-of-00001.parquet", rows=2)
    assert from_hub(str(hub), "train")["text"].to_pylist() == ["a", "b", "c", "d", "e"]
    assert from_hub(str(hub), "test")["label"].to_pylist() == [0, 1]


def test_a_hub_out_of_reach_is_unavailable(hub):
    with pytest.raises(Unavailable, match="nobody/nothing: ConnectionError"):
        from_hub("nobody/nothing", "train")


def test_a_damaged_table_of_the_hub_is_no_missing_one(hub):
    table(hub / "train-00000-of-00001.parquet")
    content = (hub / "train-00000-of-00001.parquet").read_bytes()
    (hub / "train-00000-of-00001.parquet").write_bytes(content[:100])
    with pytest.raises(InputError, match="split train: not a whole table") as error:
        from_hub(str(hub), "train")
    assert not isinstance(error.value, Unavailable)


def test_a_full_disk_is_not_a_damaged_table_of_the_hub(hub, monkeypatch):
    from datasets.exceptions import DatasetGenerationError

    error = DatasetGenerationError("An error occurred while generating the dataset")
    error.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr("datasets.load_dataset", raising(error))
    with pytest.raises(AccessError, match="some/set, split train: no space left on device; make room"):
        from_hub("some/set", "train")


def tar(path, *members, mode="w:gz"):
    with tarfile.open(path, mode) as file:
        for member in members:
            info = tarfile.TarInfo(member) if isinstance(member, str) else member
            info.size = len(CONTENT) if info.isfile() else 0
            file.addfile(info, io.BytesIO(CONTENT))
    return path


def special(kind, name="bad", target="a"):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_a_tar_is_unpacked(tmp_path, mode):
    folder = unpack(tar(tmp_path / "a.tar.gz", "set/one.bin", "set/two.bin", mode=mode), tmp_path / "out")
    assert sorted(path.name for path in (folder / "set").iterdir()) == ["one.bin", "two.bin"]
    assert (folder / "set/one.bin").read_bytes() == CONTENT and folder.stat().st_mode & 0o777 == 0o755


def test_a_zip_is_unpacked(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        file.writestr("set/one.tsv", "text")
    assert (unpack(tmp_path / "a.zip", tmp_path / "out") / "set/one.tsv").read_text() == "text"


@pytest.mark.parametrize(
    "member",
    [
        "../x",
        "set/../../x",
        "/tmp/x",
        special(tarfile.SYMTYPE),
        special(tarfile.LNKTYPE),
        special(tarfile.CHRTYPE),
        special(tarfile.FIFOTYPE),
    ],
    ids=lambda member: getattr(member, "type", member),
)
def test_a_tar_that_reaches_outside_or_links_is_refused(tmp_path, member):
    archive = tar(tmp_path / "a.tar.gz", "a", member)
    with pytest.raises(InputError, match=r"a\.tar\.gz: .*(outside its folder|a link or a device)"):
        unpack(archive, tmp_path / "below" / "out")
    assert not list((tmp_path / "below").iterdir()) and not (tmp_path / "x").exists()


@pytest.mark.parametrize("name", ["../x", "/x", "..\\x", "C:/x"])
def test_a_zip_that_reaches_outside_is_refused(tmp_path, name):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        file.writestr(name, "text")
    with pytest.raises(InputError, match="outside its folder"):
        unpack(tmp_path / "a.zip", tmp_path / "below" / "out")
    assert not list((tmp_path / "below").iterdir())


def test_a_zip_with_a_link_is_refused(tmp_path):
    link = zipfile.ZipInfo("link")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        file.writestr(link, "/etc/passwd")
    with pytest.raises(InputError, match="link is a link"):
        unpack(tmp_path / "a.zip", tmp_path / "out")


@pytest.mark.parametrize("content", [b"", b"no archive", "half"])
def test_a_damaged_archive_leaves_nothing(tmp_path, content):
    archive = tar(tmp_path / "a.tar.gz", "set/one.bin")
    archive.write_bytes(archive.read_bytes()[:200] if content == "half" else content)
    with pytest.raises(InputError, match=r"a\.tar\.gz: not a whole archive"):
        unpack(archive, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar.gz"]


@pytest.mark.parametrize("kind", ["tar", "zip"])
@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "no space left on device; make room"),
        (errno.EACCES, "permission denied; give yourself the permission"),
        (errno.EIO, "input/output error; check the disk"),
    ],
)
def test_what_the_system_refuses_is_no_damaged_archive(tmp_path, monkeypatch, kind, number, words):
    """No room in the temporary folder was told as an archive to be deleted: 2.9 GB to be fetched again."""
    if kind == "tar":
        archive = tar(tmp_path / "archive", "set/one.bin")
    else:
        archive = tmp_path / "archive"
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr("set/one.bin", CONTENT)
    monkeypatch.setattr(shutil, "copyfileobj", raising(OSError(number, os.strerror(number))))
    monkeypatch.setattr(tarfile, "copyfileobj", raising(OSError(number, os.strerror(number))))
    with pytest.raises(AccessError, match=rf"archive, unpacked into .*below: {words}") as error:
        unpack(archive, tmp_path / "below/out")
    assert "delete" not in str(error.value) and not list((tmp_path / "below").iterdir())


def test_an_archive_that_is_not_there_is_said_to_be_that(tmp_path):
    with pytest.raises(AccessError, match=r"a\.tar\.gz.*: no such file or directory"):
        unpack(tmp_path / "a.tar.gz", tmp_path / "out")


def test_an_archive_with_a_password_is_named(tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        file.writestr("set/one.tsv", "text")
    monkeypatch.setattr(zipfile.ZipFile, "extract", raising(RuntimeError("File is encrypted, password required")))
    with pytest.raises(InputError, match=r"a\.zip: not a whole archive \(File is encrypted"):
        unpack(tmp_path / "a.zip", tmp_path / "out")


def test_unpacked_is_there_for_a_while(tmp_path, monkeypatch):
    archive = tar(tmp_path / "a.tar", "set/one.bin", mode="w")
    with unpacked(archive, "cola", tmp_path) as folder:
        assert folder.name == "cola" and (folder / "set/one.bin").read_bytes() == CONTENT
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar"]
    nowhere = FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")
    monkeypatch.setattr(tempfile, "TemporaryDirectory", raising(nowhere))
    words = r"a\.tar: no folder to unpack it into .*make room, or set TMPDIR"
    with pytest.raises(AccessError, match=words), unpacked(archive, "cola"):
        pass

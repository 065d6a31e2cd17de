"""Where published data come from: a folder of the user's, the Hugging Face hub, the publisher; in that order.

A source that lacks a set raises `Unavailable`, and the next one is tried. A source that has something else under its
name (truncated, changed, unreadable) raises any other `InputError`, which ends the search: going on in silence would
hide that a file of the user's was not used.
"""

import hashlib
import http.client
import logging
import lzma
import os
import re
import shutil
import stat
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, TypeVar

from director.errors import AccessError, InputError, access_error
from director.files import accessing

if TYPE_CHECKING:
    import pyarrow

FOLDERS = "DIRECTOR_DATA"  # environment variable: folders with data, separated as in PATH
DOWNLOADS = Path("data/downloads")  # below the working folder: archives of publishers, one folder per set
TIMEOUT = 30  # seconds without a byte
CHUNK = 1 << 20  # bytes
# What to do about a file that is not the published one: of the user's, which is not ours to judge, and of our own.
PUBLISHED, DOWNLOADED = "take the publisher's file", "delete it and run again to download it anew"

Loaded = TypeVar("Loaded")
log = logging.getLogger(__name__)


class Unavailable(InputError):
    """A source does not have the data set, or cannot be reached."""


def local_folders(name: str, *also: str) -> list[Path]:
    """Folders that may hold the set `name`: for each entry of DIRECTOR_DATA its sub-folders of this name, then itself.

    also: what such a folder may be called besides, see `named`. Raises InputError for an entry that is no folder.
    """
    folders: dict[Path, None] = {}  # a set that keeps the order of insertion
    for entry in filter(None, os.environ.get(FOLDERS, "").split(os.pathsep)):
        with accessing(entry):
            folder = Path(entry).expanduser().absolute()
            if not folder.is_dir():
                raise InputError(f"{FOLDERS} names {entry}, which is no folder; correct the variable or make it")
            inside = [path for path in folder.iterdir() if named(path, name, *also) and path.is_dir()]
        inside.sort(key=lambda path: (path.name != name, path.name))
        folders |= dict.fromkeys([*inside, folder])
    return list(folders)


def named(folder: Path, *names: str) -> bool:
    """Whether a folder has one of these names; case, hyphens and the like do not count: CIFAR-10-C is cifar10_c."""
    return _letters(folder.name) in map(_letters, names)


def first_of(name: str, attempts: Mapping[str, Callable[[], Loaded]]) -> Loaded:
    """What the first source gives that has the set `name`.

    attempts: how a user provides the set by this source -> the function that reads it from there, in order.
    Raises one InputError naming every way, and what came of it, if no source has the set; any other error ends the
    search.
    """
    failures = []
    for remedy, attempt in attempts.items():
        try:
            return attempt()
        except Unavailable as error:
            failures.append(f"({len(failures) + 1}) {remedy} [{error}]")
    raise InputError(f"data set {name} was not found; provide it in one of these ways: {'; '.join(failures)}")


def from_folders(name: str, read: Callable[[Path], Loaded | None], *also: str) -> Loaded:
    """What `read` gives for the first local folder that has the set `name`; `read` gives None for one that has not.

    also: see `local_folders`. A folder of such a name that is not used is reported.
    """
    folders = local_folders(name, *also)
    for number, folder in enumerate(folders):
        with accessing(folder):
            loaded = read(folder)
        if loaded is not None:
            log.info("%s: from %s", name, folder)
            for other in folders[number + 1 :]:
                if named(other, name, *also) and other not in folder.parents:
                    log.warning("%s: %s is not used, since %s comes before it", name, other, folder)
            return loaded
        if named(folder, name, *also):
            log.warning("%s: %s is not used: it has no form of %s that is read (docs/datasets.md)", name, folder, name)
    reason = f"not in {', '.join(map(str, folders))}" if folders else f"no folder named in {FOLDERS}"
    raise Unavailable(reason)


def in_folder(name: str, *files: str) -> str:
    """The remedy that names a local folder, for `first_of`."""
    return f"put {' or '.join(files)} into a folder {name} and name the folder above it in {FOLDERS}"


def archive_in(folder: Path, name: str) -> Path | None:
    """The archive `name` in `folder`, also where its download kept the end of the address: `<name>?download=1`."""
    paths = [folder / name, *sorted(folder.glob(f"{name}[?@]*"))]  # wget writes @ where a file name may have no ?
    return next((path for path in paths if path.is_file()), None)


def from_hub(repository: str, split: str, config: str | None = None) -> "pyarrow.Table":
    """One split of a data set of the Hugging Face hub, or of its cache: an Arrow table, images as encoded bytes.

    HF_HUB_OFFLINE=1 looks into the cache alone. Raises Unavailable if the hub cannot give it, InputError if what it
    gave is not whole.
    """
    try:
        import pyarrow
        from datasets import load_dataset
        from datasets.exceptions import DatasetGenerationError
    except ImportError as error:
        raise Unavailable(f"the hub's libraries are missing: {error}") from error
    try:
        table = load_dataset(repository, config, split=split).with_format("arrow")[:]
    except (pyarrow.ArrowInvalid, DatasetGenerationError) as error:
        cause, where = error.__cause__ or error, f"{repository}, split {split}"
        if isinstance(cause, OSError) and (refused := access_error(where, cause)):
            raise refused from error
        raise InputError(
            f"{where}: not a whole table ({cause}); delete it from the cache of the hub (HF_HOME)"
        ) from error
    except Exception as error:  # the hub's libraries raise what their many parts raise
        raise Unavailable(f"{repository}: {_first_line(error)}") from error
    log.info("%s, split %s: %d rows from the hub", repository, split, len(table))
    return table


def download(url: str, target: str | Path, *, md5: str | None = None, size: int | None = None) -> Path:
    """Fetch `url` into the file `target`, unless it is there already; returns its path.

    The bytes go to `<target>.part`, renamed when complete and checked. A part left by an interrupted download is
    continued if `md5` can tell whether the pieces belong together, and begun anew if they do not. Raises Unavailable
    if the server cannot be reached or breaks off, InputError if size (bytes) or md5 differ, AccessError if the file
    cannot be written.
    """
    target = Path(target)
    part = target.with_name(f"{target.name}.part")
    with accessing(target):
        if target.is_file():
            verify(target, md5=md5, size=size, remedy=DOWNLOADED)
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        if md5 is None:
            part.unlink(missing_ok=True)
    resumed = _transfer(url, part)
    try:
        verify(part, md5=md5, size=size, remedy="the publisher has another file now")
    except AccessError:
        raise
    except InputError:
        part.unlink()
        if resumed:
            log.warning("%s: the part that was there does not belong to it; starting anew", url)
            return download(url, target, md5=md5, size=size)
        raise
    with accessing(target):
        return part.replace(target)


def verify(path: str | Path, *, md5: str | None = None, size: int | None = None, remedy: str = PUBLISHED) -> None:
    """Raise InputError unless the file has this MD5 and this many bytes (None: not compared)."""
    path = Path(path)
    with accessing(path):
        found = path.stat().st_size
        if size is not None and found != size:
            raise InputError(f"{path}: {found:,} bytes, not {size:,}; {remedy}")
        if md5 is not None and (digest := _md5(path)) != md5:
            raise InputError(f"{path}: MD5 {digest}, not {md5}; {remedy}")


def verify_content(
    where: str, labels: Iterable[int], inputs: Iterable[bytes], sha256: str, *, ordered: bool = True, remedy: str
) -> None:
    """Raise InputError unless what was read from `where` is what was published, whatever file it came in.

    inputs: UTF-8 of each text, or the bytes of each image. sha256: as of `content_digest`. Which row differs, a
    checksum of all cannot say.
    """
    if (digest := content_digest(labels, inputs, ordered)) != sha256:
        raise InputError(
            f"{where}: not the published content, although the numbers agree (SHA-256 {digest[:16]}... of texts or "
            f"images and labels, not {sha256[:16]}...); {remedy}"
        )


def content_digest(labels: Iterable[int], inputs: Iterable[bytes], ordered: bool = True) -> str:
    """SHA-256 of the SHA-256 of every row (its label as a byte, then its input); of any order if not `ordered`."""
    rows = [hashlib.sha256(bytes([label]) + row).digest() for label, row in zip(labels, inputs, strict=True)]
    return hashlib.sha256(b"".join(rows if ordered else sorted(rows))).hexdigest()


@contextmanager
def unpacked(archive: Path, name: str, folder: str | Path | None = None) -> Iterator[Path]:
    """The content of an archive in a temporary folder called `name`, in `folder` or where the system has such."""
    try:
        temporary = tempfile.TemporaryDirectory(dir=folder)
    except OSError as error:
        raise AccessError(f"{archive}: no folder to unpack it into ({error}); make room, or set TMPDIR") from error
    with temporary as made:
        yield unpack(archive, Path(made) / name)


def unpack(archive: str | Path, folder: str | Path) -> Path:
    """Unpack a tar (compressed or not) or zip archive into the new folder `folder`, which is there when complete.

    Raises InputError for an archive that is not whole, and for one with a link, a device or a name outside the folder;
    AccessError if the archive cannot be read or the folder not be written.
    """
    archive, folder = Path(archive), Path(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            (_unzip if zipfile.is_zipfile(archive) else _untar)(archive, temporary)
            temporary.chmod(0o755)  # mkdtemp makes it private to the user
            return temporary.rename(folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        # either may be at fault: that a disk is full is said without the name of a file
        if refused := access_error(f"{archive}, unpacked into {folder.parent}", error):
            raise refused from error
        raise InputError(f"{archive}: not a whole archive ({error}); {PUBLISHED}") from error
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError) as error:
        raise InputError(f"{archive}: not a whole archive ({error}); {PUBLISHED}") from error


def _untar(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as tar:
        for member in tar:
            if not (member.isfile() or member.isdir()):
                raise InputError(f"{archive}: {member.name} is a link or a device; {PUBLISHED}")
            _refuse_outside(archive, member.name)
            tar.extract(member, folder, filter="data")


def _unzip(archive: Path, folder: Path) -> None:
    with zipfile.ZipFile(archive) as file:
        for member in file.infolist():
            if stat.S_ISLNK(member.external_attr >> 16):  # where a zip made on Unix keeps the mode
                raise InputError(f"{archive}: {member.filename} is a link; {PUBLISHED}")
            _refuse_outside(archive, member.filename)
            file.extract(member, folder)


def _refuse_outside(archive: Path, name: str) -> None:
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or ":" in name:
        raise InputError(f"{archive}: {name} would be written outside its folder; {PUBLISHED}")


def _transfer(url: str, part: Path) -> bool:
    """Complete the file `part` from `url`; True if it was continued, False if begun at its first byte."""
    start = part.stat().st_size if part.is_file() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "director"})
    if start:
        request.add_header("Range", f"bytes={start}-")
    log.info("%s: downloading%s", url, f" from byte {start:,} on" if start else "")
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return True  # nothing is left to fetch: the part is whole or foreign, as its checksum will tell
        raise Unavailable(f"{url}: {error}") from error
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(f"{url}: {_first_line(error)}; run again to continue") from error
    resumed = answer.status == http.HTTPStatus.PARTIAL_CONTENT
    with answer, accessing(part), part.open("ab" if resumed else "wb") as file:
        file.writelines(_chunks(url, answer))
    return resumed


def _chunks(url: str, answer: http.client.HTTPResponse) -> Iterator[bytes]:
    """What the server sends; an error of the network is Unavailable, so that it is not taken for one of the disk."""
    announced = answer.headers.get("Content-Length")
    received = 0
    try:
        while chunk := answer.read(CHUNK):
            yield chunk
            received += len(chunk)
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(f"{url}: {_first_line(error)}; run again to continue") from error
    if announced is not None and received < int(announced):  # a closed connection looks like an end to `read`
        raise Unavailable(f"{url}: broke off after {received:,} of {int(announced):,} bytes; run again to continue")


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}".rstrip(": ")


def _letters(name: str) -> str:
    return re.sub("[^a-z0-9]", "", name.lower())

"""Where published data come from: a folder of the user's, the Hugging Face hub, the publisher; in that order.

A source that lacks a set raises `Unavailable`, and the next one is tried. A source that has it damaged (truncated,
wrong checksum, wrong count) raises any other `InputError`, which ends the search: going on in silence would hide that
a file of the user's was not used.
"""

import hashlib
import http.client
import logging
import os
import shutil
import stat
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, TypeVar

from director.errors import InputError

if TYPE_CHECKING:
    import pyarrow

FOLDERS = "DIRECTOR_DATA"  # environment variable: folders with data, separated as in PATH
DOWNLOADS = Path("data/downloads")  # below the working folder: archives of publishers, one folder per set
TIMEOUT = 30  # seconds without a byte
CHUNK = 1 << 20  # bytes

Loaded = TypeVar("Loaded")
log = logging.getLogger(__name__)


class Unavailable(InputError):
    """A source does not have the data set, or cannot be reached."""


def local_folders(name: str) -> list[Path]:
    """Folders that may hold the set `name`: for each entry of DIRECTOR_DATA its sub-folder `name`, then the entry.

    Raises InputError for an entry that is no folder.
    """
    folders = []
    for entry in filter(None, os.environ.get(FOLDERS, "").split(os.pathsep)):
        folder = Path(entry).expanduser()
        if not folder.is_dir():
            raise InputError(f"{FOLDERS} names {entry}, which is no folder; correct the variable or make the folder")
        folders += [path for path in (folder / name, folder) if path.is_dir()]
    return folders


def first_of(name: str, attempts: Mapping[str, Callable[[], Loaded]]) -> Loaded:
    """What the first source gives that has the set `name`.

    attempts: how a user provides the set by this source -> the function that reads it from there, in order.
    Raises one InputError naming every way, and what came of it, if no source has the set; damage ends the search.
    """
    failures = []
    for remedy, attempt in attempts.items():
        try:
            return attempt()
        except Unavailable as error:
            failures.append(f"({len(failures) + 1}) {remedy} [{error}]")
    raise InputError(f"data set {name} was not found; provide it in one of these ways: {'; '.join(failures)}")


def from_folders(name: str, read: Callable[[Path], Loaded | None]) -> Loaded:
    """What `read` gives for the first local folder that has the set `name`; `read` gives None for one that has not."""
    folders = local_folders(name)
    for folder in folders:
        if (loaded := read(folder)) is not None:
            log.info("%s: from %s", name, folder)
            return loaded
    reason = f"not in {', '.join(map(str, folders))}" if folders else f"no folder named in {FOLDERS}"
    raise Unavailable(reason)


def in_folder(name: str, *files: str) -> str:
    """The remedy that names a local folder, for `first_of`."""
    return f"put {' or '.join(files)} into a folder {name} and name the folder above it in {FOLDERS}"


def from_hub(repository: str, split: str, config: str | None = None) -> "pyarrow.Table":
    """One split of a data set of the Hugging Face hub, or of its cache: an Arrow table, images as encoded bytes.

    HF_HUB_OFFLINE=1 looks into the cache alone. Raises Unavailable if the hub cannot give it, InputError if what it
    gave is damaged.
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
        cause = error.__cause__ or error
        raise InputError(
            f"{repository}, split {split}: damaged ({cause}); delete it from the cache of the hub (HF_HOME)"
        ) from error
    except Exception as error:  # the hub's libraries raise what their many parts raise
        raise Unavailable(f"{repository}: {_first_line(error)}") from error
    log.info("%s, split %s: %d rows from the hub", repository, split, len(table))
    return table


def download(url: str, target: str | Path, *, md5: str | None = None, size: int | None = None) -> Path:
    """Fetch `url` into the file `target`, unless it is there already; returns its path.

    The bytes go to `<target>.part`, renamed when complete and checked. A part left by an interrupted download is
    continued if `md5` can tell whether the pieces belong together, and begun anew if they do not. Raises Unavailable
    if the server cannot be reached or breaks off, InputError if size (bytes) or md5 differ.
    """
    target = Path(target)
    if target.is_file():
        verify(target, md5=md5, size=size)
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    if md5 is None:
        part.unlink(missing_ok=True)
    resumed = _transfer(url, part)
    try:
        verify(part, md5=md5, size=size)
    except InputError:
        part.unlink()
        if resumed:
            log.warning("%s: the part that was there does not belong to it; starting anew", url)
            return download(url, target, md5=md5, size=size)
        raise
    return part.replace(target)


def verify(path: str | Path, *, md5: str | None = None, size: int | None = None) -> None:
    """Raise InputError unless the file has this MD5 and this many bytes (None: not compared)."""
    path = Path(path)
    remedy = "delete it and provide it again"
    if size is not None and path.stat().st_size != size:
        raise InputError(f"{path}: {path.stat().st_size:,} bytes, not {size:,}; {remedy}")
    if md5 is not None and (digest := _md5(path)) != md5:
        raise InputError(f"{path}: MD5 {digest}, not {md5}; {remedy}")


def unpack(archive: str | Path, folder: str | Path) -> Path:
    """Unpack a tar (compressed or not) or zip archive into the new folder `folder`, which is there when complete.

    Raises InputError for a damaged archive, and for one with a link, a device or a name outside the folder.
    """
    archive, folder = Path(archive), Path(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        (_unzip if zipfile.is_zipfile(archive) else _untar)(archive, temporary)
        temporary.chmod(0o755)  # mkdtemp makes it private to the user
        return temporary.rename(folder)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
        raise InputError(f"{archive}: not a whole archive ({error}); delete it and provide it again") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _untar(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as tar:
        for member in tar:
            if not (member.isfile() or member.isdir()):
                raise InputError(f"{archive}: {member.name} is a link or a device; take the publisher's archive")
            _refuse_outside(archive, member.name)
            tar.extract(member, folder, filter="data")


def _unzip(archive: Path, folder: Path) -> None:
    with zipfile.ZipFile(archive) as file:
        for member in file.infolist():
            if stat.S_ISLNK(member.external_attr >> 16):  # where a zip made on Unix keeps the mode
                raise InputError(f"{archive}: {member.filename} is a link; take the publisher's archive")
            _refuse_outside(archive, member.filename)
            file.extract(member, folder)


def _refuse_outside(archive: Path, name: str) -> None:
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or ":" in name:
        raise InputError(f"{archive}: {name} would be written outside its folder; take the publisher's archive")


def _transfer(url: str, part: Path) -> bool:
    """Complete the file `part` from `url`; True if it was continued, False if begun at its first byte."""
    start = part.stat().st_size if part.is_file() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "director"})
    if start:
        request.add_header("Range", f"bytes={start}-")
    log.info("%s: downloading%s", url, f" from byte {start:,} on" if start else "")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            resumed = answer.status == http.HTTPStatus.PARTIAL_CONTENT
            with part.open("ab" if resumed else "wb") as file:
                _copy(answer, file)
            return resumed
    except urllib.error.HTTPError as error:
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return True  # nothing is left to fetch: the part is whole or foreign, as its checksum will tell
        raise Unavailable(f"{url}: {error}") from error
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(f"{url}: {_first_line(error)}; run again to continue") from error


def _copy(answer: http.client.HTTPResponse, file: IO[bytes]) -> None:
    announced = answer.headers.get("Content-Length")
    received = 0
    while chunk := answer.read(CHUNK):
        file.write(chunk)
        received += len(chunk)
    if announced is not None and received < int(announced):  # a closed connection looks like an end to `read`
        raise ConnectionError(f"broke off after {received:,} of {int(announced):,} bytes")


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}".rstrip(": ")

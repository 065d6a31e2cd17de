"""Files are whole or not there."""

import errno
import os
import subprocess
import sys

import pytest

from director.data.splits import load_split
from director.errors import AccessError, InputError
from director.files import file_digest, read_json, remove_temporaries, replacing, write_json
from director.models.weights import load_model
from director.numbers.measure import read_metrics
from director.numbers.predictions import Predictions
from director.numbers.suites import read_cost
from director.report.tables import read_comparison
from director.settings.reading import load_experiment
from director.training.cache_trajectory import read_complete


def test_failure_keeps_the_old_file_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "numbers.json"
    write_json(path, {"kept": 1})
    with pytest.raises(RuntimeError), replacing(path) as temporary:
        temporary.write_text("half a fi")
        raise RuntimeError("killed here")
    assert read_json(path) == {"kept": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_temporary_lies_beside_and_keeps_the_suffix(tmp_path):
    with replacing(tmp_path / "deep" / "array.npz") as temporary:
        assert temporary.parent == tmp_path / "deep"
        assert temporary.suffix == ".npz"


def test_json_refuses_what_json_cannot_say(tmp_path):
    with pytest.raises(ValueError):
        write_json(tmp_path / "x.json", {"value": float("nan")})
    assert not (tmp_path / "x.json").exists()


@pytest.mark.parametrize("content", ["{", "", "\x00"])
def test_broken_json_is_named(tmp_path, content):
    (tmp_path / "broken.json").write_text(content)
    with pytest.raises(InputError, match=r"broken\.json"):
        read_json(tmp_path / "broken.json")


def test_digest_is_of_the_bytes(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    assert file_digest(tmp_path / "a") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


# -- what the system refuses is told as what it is ---------------------------------------------------------------------

WRITERS = {
    "json": "files.write_json(path, list(range(3000)))",
    "text": "files.write_text(path, 3000 * 'word ')",
    "predictions": "Predictions(np.ones((2, 900, 3)), None).save(path)",
    "dataset": "Dataset.clean('d', np.zeros((90, 8, 8, 3), np.uint8), None).save(path)",
    "weights": "write_tensors(path, {'w': torch.zeros(9000)}, {})",
    "split": "write_split(path, dict(zip(['train', 'validation', 'test'], np.arange(2700).reshape(3, 900))))",
}
LIMITED = """
import resource, sys
import numpy as np, torch
from director import files
from director.data.dataset import Dataset
from director.data.splits import write_split
from director.errors import AccessError
from director.models.weights import write_tensors
from director.numbers.predictions import Predictions
path = sys.argv[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))  # as a disk on which 5,000 bytes are free
try:
    {}
except AccessError as error:
    sys.exit(f"refused: {{error}}")
"""


@pytest.mark.parametrize("writer", WRITERS)
def test_a_disk_that_is_full_is_one_line_and_leaves_nothing(tmp_path, writer):
    path = tmp_path / "out" / "it.npz"
    ended = subprocess.run(
        [sys.executable, "-c", LIMITED.format(WRITERS[writer]), str(path)], capture_output=True, text=True
    )
    assert ended.stderr.startswith(f"refused: {path}"), ended.stderr
    assert len(ended.stderr.splitlines()) == 1 and ended.returncode == 1
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == []


READERS = {
    "json": read_json,
    "predictions": Predictions.load,
    "weights": load_model,
    "split": load_split,
    "experiment": load_experiment,
    "metrics": read_metrics,
    "cost": read_cost,
    "comparison": read_comparison,
    "capture": read_complete,
}


@pytest.mark.parametrize("reader", READERS)
def test_readers_name_what_the_system_refuses(tmp_path, monkeypatch, reader):
    read = READERS[reader]
    with pytest.raises(AccessError, match=r"gone\.npz: no such file or directory; correct the path, or make"):
        read(tmp_path / "gone.npz")
    with pytest.raises(AccessError, match=r"is a directory; give a file, not a folder|no such device"):
        read(tmp_path)
    (tmp_path / "there.npz").write_bytes(b"x")
    for number, word in ((errno.EACCES, "permission"), (errno.EIO, "check the disk"), (errno.EMFILE, "ulimit -n")):

        def refuse(*_, number=number, **__):
            raise OSError(number, os.strerror(number), str(tmp_path / "there.npz"))

        with monkeypatch.context() as patched:
            patched.setattr("builtins.open", refuse)
            patched.setattr("io.open", refuse)
            patched.setattr("director.models.weights.safe_open", refuse)
            with pytest.raises(AccessError, match=rf"there\.npz: .*{word}"):
                read(tmp_path / "there.npz")


FOREIGN = [b"", b"\xff\xfe\x00", b"PK\x03\x04", b"a,b\n1,2\n"]
JSON = [b"{}", b"[]", b"null", b"7"]


@pytest.mark.parametrize(
    ("reader", "content"),
    [(reader, content) for reader in READERS for content in FOREIGN + (JSON if reader != "json" else [])],
)
def test_what_parses_and_is_not_it_is_one_error_with_the_file(tmp_path, reader, content):
    (tmp_path / "it.yaml").write_bytes(content)
    with pytest.raises(InputError, match=r"it\.yaml") as caught:
        READERS[reader](tmp_path / "it.yaml")
    assert not isinstance(caught.value, AccessError)


def test_what_killed_writers_left_is_removed_and_nothing_else(tmp_path):
    script = (
        "import os\nfrom director.files import replacing\nwith replacing('a/b/model.safetensors'):\n    os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=False)
    (left,) = (tmp_path / "a/b").iterdir()
    kept = [tmp_path / "a" / name for name in ("model-abcdefgh.npz", ".gitignore", ".short-abc.npz", "x.npz")]
    for path in kept:
        path.touch()
    remove_temporaries(tmp_path)
    assert not left.exists() and all(path.exists() for path in kept)

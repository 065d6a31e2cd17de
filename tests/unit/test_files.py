"""Files are whole or not there."""

import pytest

from director.errors import InputError
from director.files import file_digest, read_json, replacing, write_json


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

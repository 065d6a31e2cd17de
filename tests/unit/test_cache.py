"""Trajectories from disk: the same batches as live, and no cache that is not whole or not the right one."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from director.errors import InputError
from director.models.transformers import ImageTransformer, Transformer
from director.path.cache import MANIFEST, TrajectoryCache, _open_shard, write_cache
from director.path.residual import path_of
from director.path.trajectory import Trajectory, capture

ROOT = Path(__file__).resolve().parents[2]
COUNT, IDENTITY = 10, {"weights": "ab12", "rows": (0, 10), "view": 0}
SIZES = {"width": 12, "depth": 3, "heads": 3, "mlp_width": 8, "classes": 4, "dropout": 0.1}


class TokenEmbedding(nn.Module):
    """Token numbers [B, N], -1 for padding -> tokens and mask."""

    tokens = 8

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(20, 12)

    def forward(self, numbers):
        return self.table(numbers.clamp(min=0)), numbers >= 0


class TokenTransformer(Transformer):
    """A transformer of token numbers."""

    kind = "tokens"

    @classmethod
    def embedding_of(cls, settings):
        return TokenEmbedding()


def kep(variant):
    """Kernel-eigenpair attention in the last layer."""
    return {"kind": "kep_svgp", "layers": 1, "variant": variant, "rank": 2, "multiplier": 2}


@pytest.fixture(params=["images", "text"])
def teacher(request):
    """A path, and rows -> inputs of it; the text model has kernel-eigenpair layers, its inputs are ragged."""
    torch.manual_seed(0)
    if request.param == "images":
        model = ImageTransformer(image_size=8, channels=1, patch=4, **SIZES, attention=kep("concat"))
        inputs = torch.randn(COUNT, 1, 8, 8)
        return path_of(model), lambda rows: inputs[rows]
    model = TokenTransformer({**SIZES, "attention": kep("sum")})
    numbers = torch.randint(20, (COUNT, 8))
    lengths = torch.tensor([8, 3, 1, 5, 7, 2, 2, 4, 6, 3])
    numbers[torch.arange(8) >= lengths[:, None]] = -1
    return path_of(model), lambda rows: numbers[rows, : lengths[rows].max()]


def equal(one, other, rtol=0.0, atol=0.0):
    torch.testing.assert_close(one.states, other.states, rtol=rtol, atol=atol)
    torch.testing.assert_close(one.variances, other.variances, rtol=rtol, atol=atol)
    assert (one.mask is None) == (other.mask is None)
    assert one.mask is None or torch.equal(one.mask, other.mask)


def filled(folder, teacher, **options):
    write_cache(folder, *teacher, COUNT, **{"identity": IDENTITY, "shard_size": 4} | options)
    return folder


def test_cached_batches_equal_live_ones_exactly_in_float32(tmp_path, teacher):
    path, inputs = teacher
    data = TrajectoryCache(filled(tmp_path, teacher), IDENTITY)
    assert (len(data), data.steps, data.width) == (COUNT, 3, 12)
    for start in (0, 4, 8):
        rows = np.arange(start, min(start + 4, COUNT))
        equal(data.batch(rows), capture(path, inputs(rows)))
    shuffled = [9, 2, 5, 0, 5]
    equal(data.batch(shuffled), capture(path, inputs(shuffled)), rtol=1e-4, atol=1e-5)
    equal(data.batch([2]), capture(path, inputs([2])), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype, bits", [("bfloat16", 8), ("float16", 11)])
def test_smaller_numbers_are_rounded_to_the_nearest(tmp_path, teacher, dtype, bits):
    path, inputs = teacher
    live = capture(path, inputs(range(4)))
    batch = TrajectoryCache(filled(tmp_path, teacher, dtype=dtype), IDENTITY).batch(range(4))
    stored = getattr(torch, dtype)
    assert batch.states.dtype == batch.variances.dtype == stored
    rounded = Trajectory(batch.states.float(), batch.variances.float(), batch.mask)
    equal(rounded, live, rtol=2.0**-bits, atol=1e-7)
    assert torch.equal(batch.states, live.states.to(stored))


def test_only_real_tokens_are_stored_and_opened_as_a_memory_map(tmp_path, teacher):
    path, inputs = teacher
    data = TrajectoryCache(filled(tmp_path, teacher), IDENTITY)
    offsets, tokens = _open_shard(data.folder, 0)
    live = capture(path, inputs(range(4)))
    lengths = np.full(4, 4) if live.mask is None else live.mask.sum(1).numpy()
    assert offsets.tolist() == [0, *lengths.cumsum()]
    assert tokens.shape == (lengths.sum(), 7, 12) and isinstance(tokens, np.memmap)


def test_softmax_variance_reaches_the_cache(tmp_path, teacher):
    data = TrajectoryCache(filled(tmp_path, teacher, softmax_variance="zero"), {"softmax_variance": "zero"})
    variances = data.batch([0]).variances
    assert (variances[:2] == 0).all() and (variances[2] > 0).all()


def test_an_interrupted_capture_goes_on_at_the_last_whole_shard(tmp_path, teacher):
    path, inputs = teacher
    asked = []

    def watched(rows, fail_at=None):
        asked.append(rows[0])
        if rows[0] == fail_at:
            raise KeyboardInterrupt
        return inputs(rows)

    with pytest.raises(KeyboardInterrupt):
        filled(tmp_path / "a", (path, lambda rows: watched(rows, fail_at=8)))
    with pytest.raises(InputError, match=r"a: an unfinished trajectory cache of 10 examples"):
        TrajectoryCache(tmp_path / "a", IDENTITY)
    (tmp_path / "a" / "00001.tokens.npy").write_bytes(b"damaged")
    asked.clear()
    filled(tmp_path / "a", (path, watched))
    assert asked == [4, 8]
    filled(tmp_path / "b", teacher)
    for file in (tmp_path / "b").iterdir():
        assert file.read_bytes() == (tmp_path / "a" / file.name).read_bytes()
    asked.clear()
    filled(tmp_path / "a", (path, watched))
    assert asked == []


def test_a_capture_of_something_else_replaces_a_stale_cache(tmp_path, teacher):
    filled(tmp_path, teacher)
    filled(tmp_path, teacher, identity={**IDENTITY, "weights": "cd34"}, shard_size=10)
    assert TrajectoryCache(tmp_path, {**IDENTITY, "weights": "cd34"}).batch([9]).states.isfinite().all()
    assert len(list(tmp_path.glob("*.npy"))) == 2


def test_unusable_caches_are_refused_by_name(tmp_path, teacher):
    folder = filled(tmp_path / "cache", teacher)
    with pytest.raises(InputError, match=r"cache: stale .*weights is 'ab12', not 'zz'.*view is 0, not 1"):
        TrajectoryCache(folder, {"weights": "zz", "view": 1})
    with pytest.raises(InputError, match="missing"):
        TrajectoryCache(tmp_path / "missing", IDENTITY)
    tokens = folder / "00001.tokens.npy"
    content = tokens.read_bytes()
    tokens.write_bytes(content[:-4])
    with pytest.raises(InputError, match=r"00001\.tokens\.npy: differs from its checksum"):
        TrajectoryCache(folder, IDENTITY)
    tokens.unlink()
    with pytest.raises(InputError, match=r"00001\.tokens\.npy: is missing"):
        TrajectoryCache(folder, IDENTITY)
    tokens.write_bytes(content)
    with pytest.raises(InputError, match="no row 10: it holds 10 examples"):
        TrajectoryCache(folder, IDENTITY).batch([3, 10])
    (folder / MANIFEST).write_text(json.dumps({"name": "digits"}))
    with pytest.raises(InputError, match=r"manifest\.json: not the manifest of a trajectory cache"):
        TrajectoryCache(folder, IDENTITY)
    with pytest.raises(InputError, match=r"manifest\.json: not the manifest of a trajectory cache"):
        filled(folder, teacher)  # nor is another's folder written to


def test_states_that_cannot_be_kept_are_refused(tmp_path, teacher):
    path, _ = teacher
    with pytest.raises(InputError, match="'float8' is not possible; choose one of float32"):
        filled(tmp_path, teacher, dtype="float8")
    with pytest.raises(InputError, match="shard_size 0"):
        filled(tmp_path, teacher, shard_size=0)
    with torch.no_grad():
        path.model.blocks[0].attention_half.attention.o.bias.fill_(1e5)
    with pytest.raises(InputError, match="do not fit into float16; use bfloat16 or float32"):
        filled(tmp_path, teacher, dtype="float16")
    with torch.no_grad():
        path.model.blocks[0].attention_half.attention.o.bias.fill_(float("nan"))
    with pytest.raises(InputError, match="not finite in shard 0"):
        filled(tmp_path, teacher)


def test_padding_before_real_tokens_is_refused(tmp_path):
    torch.manual_seed(0)
    model = TokenTransformer({**SIZES, "depth": 1, "attention": None})
    with pytest.raises(InputError, match="shard 0 have padding before real tokens"):
        write_cache(tmp_path, path_of(model), lambda rows: torch.tensor([[-1, 4]]), 1, identity={})


def test_a_cache_captured_again_is_not_read_from_the_maps_of_the_old_one(tmp_path, teacher):
    path, inputs = teacher
    TrajectoryCache(filled(tmp_path, teacher), IDENTITY).batch([0])  # leaves its shard open
    with torch.no_grad():
        path.model.blocks[0].attention_half.attention.o.bias.add_(1)
    changed = IDENTITY | {"weights": "cd34"}
    again = TrajectoryCache(filled(tmp_path, teacher, identity=changed), changed)
    equal(again.batch(range(4)), capture(path, inputs(range(4))))


MANY_SHARDS = """
import os, resource, sys
from pathlib import Path
import numpy as np
import torch
from director.models.transformers import ImageTransformer
from director.path import cache
from director.path.residual import path_of

COUNT = cache.OPEN_SHARDS + 40  # examples, each a shard

def open_files():
    return len(os.listdir("/proc/self/fd"))

torch.manual_seed(0)
sizes = {"width": 4, "depth": 1, "heads": 1, "mlp_width": 4, "classes": 2}
path = path_of(ImageTransformer(image_size=2, channels=1, patch=1, **sizes))
images = torch.randn(COUNT, 1, 2, 2)
views = []
for view in range(3):
    folder = Path(sys.argv[1], f"view-{view}")
    shift = 0.1 * view
    cache.write_cache(folder, path, lambda rows: images[rows] + shift, COUNT, identity={"view": view}, shard_size=1)
    views.append(cache.TrajectoryCache(folder, {"view": view}))
before = open_files()
limit = before + cache.OPEN_SHARDS + 20
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
rows = np.arange(COUNT)
for view in views:
    one_batch = view.batch(rows)  # more shards in one batch than may be open
    for row in rows:
        one = view.batch([row])
        assert torch.equal(one.states, one_batch.states[:, row : row + 1])
    assert open_files() <= before + cache.OPEN_SHARDS, open_files() - before
"""


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts open files in /proc")
def test_open_files_are_bounded_over_all_views_and_within_a_batch(tmp_path):
    """A mapped shard is an open file, of which a system allows some 1,000: an epoch of many shards used them up."""
    ended = subprocess.run([sys.executable, "-c", MANY_SHARDS, tmp_path], capture_output=True, text=True, cwd=ROOT)
    assert ended.returncode == 0, ended.stderr[-2000:]

"""Files that were cut off, overwritten or are something else: our own error or a right result, nothing else.

`pytest -m slow tests/traps/test_fuzz.py` tries 2,000 of each kind.
"""

import contextlib

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from conftest import TINY
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from director.errors import InputError
from director.foreign import read
from director.models.transformers import ImageTransformer
from director.numbers.predictions import Predictions
from director.path.cache import TrajectoryCache, write_cache
from director.path.residual import path_of
from director.settings.reading import load_experiment

CASES = [40, pytest.param(2000, marks=pytest.mark.slow)]


@st.composite
def damaged(draw, content):
    """`content` with what happens to files: cut off, bytes changed, blocks of zeros, bytes put in, another file."""
    kind = draw(st.sampled_from(["cut", "changed", "zeros", "put in", "foreign"]))
    start = draw(st.integers(0, len(content)))
    if kind == "cut":
        return content[:start]
    if kind == "zeros":
        end = draw(st.integers(start, len(content)))
        return content[:start] + bytes(end - start) + content[end:]
    some = draw(st.binary(min_size=1, max_size=40))
    if kind == "foreign":
        return some
    return content[:start] + some + content[start + len(some) * (kind == "changed") :]


def tried(cases, content, check):
    """`check` of many damaged contents; it may raise InputError and nothing else."""

    @settings(max_examples=cases, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(damaged(content))
    def run(bad):
        with contextlib.suppress(InputError):
            check(bad)

    run()


def some_predictions():
    generator = np.random.default_rng(0)
    return Predictions(generator.normal(size=(2, 12, 3)), np.arange(12) % 3, about={"method": "mle"})


@pytest.mark.parametrize("cases", CASES)
def test_predictions_are_refused_or_as_they_were(tmp_path, cases):
    path, whole = tmp_path / "test.npz", some_predictions()
    whole.save(path)

    def check(bad):
        path.write_bytes(bad)
        found = Predictions.load(path)
        np.testing.assert_array_equal(found.logits, whole.logits.astype(np.float32))
        np.testing.assert_array_equal(found.labels, whole.labels)

    tried(cases, path.read_bytes(), check)


@pytest.mark.parametrize("cases", CASES)
@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npy"])
def test_predictions_of_other_programs_are_refused_or_valid(tmp_path, suffix, cases):
    """A table has no checksum: what can be read as numbers is taken as it stands."""
    path, logits = tmp_path / f"test{suffix}", np.random.default_rng(0).normal(size=(12, 3))
    if suffix == ".npy":
        np.save(path, logits)
    else:
        table = pd.DataFrame(logits, columns=["p_0", "p_1", "p_2"]).assign(label=np.arange(12) % 3)
        table.to_csv(path, index=False) if suffix == ".csv" else table.to_parquet(path)

    def check(bad):
        path.write_bytes(bad)
        found = read(path)
        assert np.isfinite(found.logits).all() and found.logits.ndim == 3

    tried(cases, path.read_bytes(), check)


@pytest.mark.parametrize("cases", CASES)
def test_settings_are_refused_or_valid(tmp_path, cases):
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(TINY, sort_keys=False))

    def check(bad):
        path.write_bytes(bad)
        load_experiment(path)

    tried(cases, path.read_bytes(), check)


@pytest.mark.parametrize("cases", CASES)
def test_a_cache_of_trajectories_is_refused_or_as_it_was(tmp_path, cases):
    torch.manual_seed(0)
    model = ImageTransformer(
        width=4, depth=1, heads=1, mlp_width=4, classes=3, dropout=0.1, image_size=4, patch=2, channels=1
    )
    images = torch.rand(6, 1, 4, 4)
    write_cache(tmp_path, path_of(model), lambda rows: images[rows], 6, identity={"view": 0}, shard_size=3)
    rows = range(6)
    whole = TrajectoryCache(tmp_path, {"view": 0}).batch(rows)
    for path in sorted(tmp_path.iterdir()):
        content = path.read_bytes()

        def check(bad, path=path):
            replaced = path.with_suffix(".new")  # as a cache is open in memory, its bytes are not overwritten
            replaced.write_bytes(bad)
            replaced.replace(path)
            found = TrajectoryCache(tmp_path, {"view": 0}).batch(rows)
            assert torch.equal(found.states, whole.states) and torch.equal(found.variances, whole.variances)

        tried(cases, content, check)
        path.write_bytes(content)

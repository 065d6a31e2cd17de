"""A study of a pretrained model, end to end, from a checkpoint in a folder."""

import json

import pytest
from builders import bert_checkpoint
from conftest import SHORT, TINY_TEXTS
from safetensors.torch import load_file

from director.numbers.suites import load_suite

pytestmark = pytest.mark.pipeline
RUN = "results/runs/tiny/softmax/seed-0"
ROWS = ["mle", "mle_early", "temperature", "mc_dropout", "director", "director_noise"]


def test_every_row_is_made_from_a_checkpoint_that_is_then_needed_no_more(fresh):
    checkpoint = bert_checkpoint(fresh.folder / "checkpoint")
    model = {"kind": "pretrained", "source": "checkpoint", "max_length": 12, "classes": 2, "last": 2, "states_every": 2}
    few = {"data": TINY_TEXTS["data"] | {"train": 200}, "methods": {"softmax": ROWS}}
    student = TINY_TEXTS["director"] | {"training": SHORT}
    changes = TINY_TEXTS | few | {"model": model, "training": SHORT, "director": student}
    fresh.settings(**changes)
    fresh.snakemake("--cores", "2", "results/runs/tiny/softmax/seed-0/trajectory/complete.json")
    checkpoint.rename(fresh.folder / "elsewhere")
    fresh.snakemake("--cores", "2", f"{RUN}/metrics.json")
    samples = {"mle": 1, "mle_early": 1, "temperature": 1, "mc_dropout": 3, "director": 2, "director_noise": 2}
    for method, count in samples.items():
        made = load_suite(fresh.folder / RUN / method / "predictions/manifest.json", "test")
        assert made.logits.shape == (count, 60, 2), method
    tensors = load_file(fresh.folder / RUN / "director/model.safetensors")
    assert {name.split(".")[0] for name in tensors} == {"kernel", "readout"}
    cost = json.loads((fresh.folder / RUN / "director/predictions/cost.json").read_text())
    assert cost["parameters"] == sum(tensor.numel() for tensor in tensors.values())
    assert "train_backbone" not in fresh.plan(f"{RUN}/metrics.json")

"""A study of texts, end to end: what the rules do otherwise than for images."""

import json

import numpy as np
import pytest

from director.data.dataset import Dataset
from director.models.weights import load_model
from director.numbers.predictions import Predictions

pytestmark = pytest.mark.pipeline
RUN = "results/runs/tiny/softmax/seed-0"


def test_weights_carry_the_tokenizer_that_the_student_reads_with(text_study):
    teacher, student = (
        load_model(text_study.folder / RUN / f"{name}/model.safetensors")[0] for name in ("backbone", "director")
    )
    tokenizer = teacher.settings["tokenizer"]
    assert "the" in json.loads(tokenizer)["model"]["vocab"]
    assert student.settings["backbone"]["settings"]["tokenizer"] == tokenizer
    manifest = json.loads((text_study.folder / RUN / "trajectory/view-0/manifest.json").read_text())
    assert manifest["complete"] and all(shard["masked"] for shard in manifest["shards"])


def test_suites_are_as_long_as_asked_for_and_labelled(text_study):
    split = np.load(text_study.folder / RUN / "backbone/split.npz")
    shifted = Dataset.load(text_study.folder / "data/raw/agreement_shifted")
    for method in ("mle", "director"):
        own, other = (
            Predictions.load(text_study.folder / RUN / f"{method}/predictions/{suite}.npz")
            for suite in ("test", "shifted")
        )
        assert len(own.example) == len(other.example) == 60
        assert set(own.example) <= set(split["test"])
        np.testing.assert_array_equal(other.labels, shifted.labels[other.example])


def test_predictions_are_held_against_the_true_probabilities(text_study):
    drawn = (text_study.folder / "results/figures/tiny/bayes.svg").read_text()
    assert drawn.count("KL ") == 4, "two rows, two suites"


def test_the_whole_study_measures_every_suite_and_draws_what_they_give(text_study):
    plan = text_study.plan("all")
    assert plan["measure"] == 1 and plan["tabulate"] == 1
    drawn = {rule for rule in plan if rule.startswith("plot_")}
    always = {"plot_confidence", "plot_training", "plot_comparison", "plot_samples", "plot_depth"}
    assert drawn == always, "no severity without corrupted inputs"
    assert not {"train_backbone", "train_student", "predict", "predict_student", "plot_bayes"} & set(plan)

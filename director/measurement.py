"""From one prediction file to the records of its metrics."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from director.metrics import ood_summary, records
from director.predictions import Predictions

POOLING = "softmax"  # of the samples, unless a method's own protocol says otherwise
SCORES = {"max_softmax": "", "negative_entropy": "_entropy", "negative_mutual_information": "_mutual_information"}


def measure_suite(
    file: str | Path, inside: str | Path | None = None, samples: Sequence[int] | None = None
) -> dict[str, Any]:
    """Every metric of a prediction file: {"about": ..., "records": [one per (shift, severity), then the overall one]}.

    inside: the test predictions of the same run, if `file` is an out-of-distribution suite: then the records hold
    how well the two are told apart (`ood_auroc`, `ood_aupr_in`, `ood_aupr_out`, `ood_fpr95`, for the maximum softmax
    probability; with `_entropy` or `_mutual_information` behind the name for those scores). Undefined is None.
    samples: measure with so many of the samples, each number on its own; None for all of them.
    """
    predictions = Predictions.load(file)
    held = None if inside is None else Predictions.load(inside)
    found = [record for number in samples or [None] for record in _records(predictions, held, number)]
    return {"about": predictions.about, "records": found}


def _records(predictions: Predictions, inside: Predictions | None, samples: int | None) -> list[dict[str, Any]]:
    if inside is None:
        return records(predictions, POOLING, samples)
    summary = ood_summary(inside, predictions, POOLING, samples)
    numbers = {
        f"ood_{metric}{suffix}": value
        for score, suffix in SCORES.items()
        for metric, value in (summary[score] or dict.fromkeys(("auroc", "aupr_in", "aupr_out", "fpr95"))).items()
    }
    pooled = predictions.pool(POOLING, samples)
    cell = {"samples": pooled.about["samples"], "pooling": pooled.about["pooling"], "n": pooled.logits.shape[1]}
    return [cell | {"shift": predictions.about["suite"], "severity": 0} | numbers]

"""From one prediction file to the records of its metrics."""

from pathlib import Path
from typing import Any

from director.metrics import ood_summary, records
from director.predictions import Predictions

POOLING = "softmax"  # of the samples, unless a method's own protocol says otherwise
SCORES = {"max_softmax": "", "negative_entropy": "_entropy", "negative_mutual_information": "_mutual_information"}


def measure_suite(file: str | Path, inside: str | Path | None = None) -> dict[str, Any]:
    """Every metric of a prediction file: {"about": ..., "records": [one per (shift, severity), then the overall one]}.

    inside: the test predictions of the same run, if `file` is an out-of-distribution suite: then the records hold
    how well the two are told apart (`ood_auroc`, `ood_aupr_in`, `ood_aupr_out`, `ood_fpr95`, for the maximum softmax
    probability; with `_entropy` or `_mutual_information` behind the name for those scores). Undefined is None.
    """
    predictions = Predictions.load(file)
    if inside is None:
        found = records(predictions, pooling=POOLING)
    else:
        summary = ood_summary(Predictions.load(inside), predictions)
        numbers = {
            f"ood_{metric}{suffix}": value
            for score, suffix in SCORES.items()
            for metric, value in (summary[score] or dict.fromkeys(("auroc", "aupr_in", "aupr_out", "fpr95"))).items()
        }
        samples, count, _ = predictions.logits.shape
        cell = {"samples": samples, "pooling": POOLING, "shift": predictions.about["suite"], "severity": 0, "n": count}
        found = [cell | numbers]
    return {"about": predictions.about, "records": found}

"""How fast are the numbers? Ratios to scikit-learn and torchmetrics, where they have the metric.

`python benchmarks/metrics.py`; torchmetrics is compared where it is installed (`make laplace` brings it).
"""

import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
from sklearn import metrics as sklearn
from timing import peak_gigabytes

from director.numbers.comparison import paired_bootstrap
from director.numbers.metrics import METRICS, accuracy, brier, ece_15, nll, summary
from director.numbers.predictions import Predictions


def seconds(action: Callable[[], Any]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def random_predictions(rows: int, classes: int, seed: int) -> Predictions:
    labels = np.random.default_rng(99).integers(classes, size=rows)
    logits = np.random.default_rng(seed).normal(size=(rows, classes)).astype(np.float32)
    logits[np.arange(rows), labels] += 2
    return Predictions(logits, labels)


def against_torchmetrics(predictions: Predictions, classes: int) -> None:
    """Print the ratio over its metrics of the same predictions, from logits on both sides."""
    import torch
    from torchmetrics import functional

    logits, labels = torch.from_numpy(predictions.logits[0]), torch.from_numpy(predictions.labels)
    correct = torch.from_numpy(predictions.correct).long()

    def confidence() -> torch.Tensor:
        return logits.softmax(-1).amax(-1)

    peers = {
        "accuracy": lambda: functional.classification.multiclass_accuracy(logits, labels, classes, average="micro"),
        "ece_15": lambda: functional.classification.multiclass_calibration_error(logits, labels, classes, n_bins=15),
        "mcc": lambda: functional.classification.multiclass_matthews_corrcoef(logits, labels, classes),
        "auroc": lambda: functional.classification.binary_auroc(confidence(), correct),
        "aupr_success": lambda: functional.classification.binary_average_precision(confidence(), correct),
    }
    theirs = sum(map(seconds, peers.values()))
    fresh = Predictions(predictions.logits, predictions.labels)  # nothing cached
    ours = seconds(lambda: [METRICS[name](fresh) for name in peers])
    print(f"{len(peers)} of them against torchmetrics, from logits: ratio {ours / theirs:.2f}")


def main(rows: int = 750_000, classes: int = 10) -> None:
    predictions = random_predictions(rows, classes, seed=0)
    whole = seconds(lambda: summary(predictions))
    print(f"summary, {rows} x {classes}: {whole:.1f} s, peak of the process {peak_gigabytes():.2f} GB")

    labels, predicted, probabilities = predictions.labels, predictions.predicted, predictions.probabilities
    correct, confidence = predictions.correct, predictions.confidence
    peers = {
        "accuracy": lambda: sklearn.accuracy_score(labels, predicted),
        "mcc": lambda: sklearn.matthews_corrcoef(labels, predicted),
        "nll": lambda: sklearn.log_loss(labels, probabilities),
        "auroc": lambda: sklearn.roc_auc_score(correct, confidence),
        "aupr_success": lambda: sklearn.average_precision_score(correct, confidence),
        "aupr_error": lambda: sklearn.average_precision_score(~correct, -confidence),
        "fpr95": lambda: sklearn.roc_curve(correct, confidence),
    }
    theirs = {name: seconds(peer) for name, peer in peers.items()}
    print(f"all {len(METRICS)} metrics against scikit-learn's {len(peers)}: ratio {whole / sum(theirs.values()):.2f}")
    fresh = random_predictions(rows, classes, seed=0)  # nothing cached
    ours = seconds(lambda: [METRICS[name](fresh) for name in peers])
    print(f"the same {len(peers)}, softmax and ranking included: ratio {ours / sum(theirs.values()):.2f}")

    if find_spec("torchmetrics"):
        against_torchmetrics(random_predictions(rows, classes, seed=0), classes)

    runs, reference = (
        [random_predictions(10_000, classes, seed) for seed in seeds] for seeds in (range(5), range(5, 10))
    )
    for metric in (accuracy, nll, brier, ece_15):
        taken = seconds(lambda metric=metric: paired_bootstrap(metric.__name__, runs, reference))
        single = seconds(lambda metric=metric: metric(random_predictions(10_000, classes, seed=0)))
        print(f"paired bootstrap of {metric.__name__}, 5 + 5 runs x 1000 replicates: {taken:.1f} s, ", end="")
        print(f"{taken / (10_000 * single):.3f} of evaluating it anew each time")


if __name__ == "__main__":
    main()

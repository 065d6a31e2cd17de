"""What a figure says in numbers."""

import numpy as np

from director.figures import plot_bayes
from director.predictions import Predictions

TRUTH = {
    "test": np.array([[0.5, 0.5], [0.9, 0.1], [0.25, 0.75], [1.0, 0.0]]),
    "shifted": np.array([[0.5, 0.5], [0.75, 0.25]]),
}


def predictions(folder, method, suite, probabilities, example, seed=0):
    about = {"method": method, "backbone": "softmax", "suite": suite, "seed": seed}
    path = folder / f"{method}-{suite}-{seed}.npz"
    logits = np.log(np.maximum(probabilities, 1e-12)).astype(np.float32)
    Predictions(logits, np.zeros(len(logits), int), np.array(example), about=about).save(path)
    return path


def test_divergence_from_the_true_probabilities_is_written_over_each_panel(tmp_path):
    """Examples are found by their number; the truth itself scores 0, a coin flip what is computed by hand."""
    files = []
    for suite, truth in TRUTH.items():
        rows = np.arange(len(truth))[::-1]
        files.append(predictions(tmp_path, "truth", suite, truth[rows], rows))
        for seed in (0, 1):
            files.append(predictions(tmp_path, "coin", suite, np.full(truth.shape, 0.5), rows, seed))
    plot_bayes(files, TRUTH, tmp_path / "bayes.svg")
    drawn = (tmp_path / "bayes.svg").read_text()
    entropies = {  # in nats
        "test": [np.log(2), -0.9 * np.log(0.9) - 0.1 * np.log(0.1), -0.25 * np.log(0.25) - 0.75 * np.log(0.75), 0],
        "shifted": [np.log(2), -0.25 * np.log(0.25) - 0.75 * np.log(0.75)],
    }
    for suite, entropy in entropies.items():
        assert f"{suite}, KL 0.000" in drawn
        assert f"{suite}, KL {np.log(2) - np.mean(entropy):.3f}" in drawn
    assert drawn.count("truth (softmax)") == drawn.count("coin (softmax)") == 2


def test_the_same_numbers_give_the_same_bytes(tmp_path):
    file = predictions(tmp_path, "truth", "test", TRUTH["test"], range(4))
    for name in ("one.svg", "two.svg"):
        plot_bayes([file], {"test": TRUTH["test"]}, tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()

"""How much noise a student's roll-outs need: one number, chosen on validation data as a temperature is.

A kernel learns *where* to be uncertain. How uncertain it is follows from its training examples, and a student that
knows them too well is too sure of its steps. Its standard deviations are multiplied by one scale tau >= 0: tau = 1 is
the kernel as it was trained, tau = 0 takes the mean of every step.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from director.files import read_json, reading, write_json
from director.numbers.metrics import accuracy, ece_15, nll
from director.numbers.predictions import Predictions

FORMAT = "director noise scale 1"
GRID = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)  # scales that are always tried
REFINED = 8  # further ones, between the neighbours of the best
RESOLUTION = 0.02  # two scales that differ by less are not told apart
MEASURED = {"nll": nll, "ece_15": ece_15, "accuracy": accuracy}


def fit_noise_scale(predict: Callable[[float], Predictions]) -> dict[str, Any]:
    """The scale in [0, 8] with the lowest validation NLL of the pooled roll-outs, and what was tried.

    predict: scale -> predictions on the validation part, with the same draws of noise for every scale, so that the NLL
    is a function of it and the result is the same each time. First GRID is tried, then up to REFINED scales between the
    neighbours of the best (Brent's bounded search); of equals the smallest is taken.

    Returns `scale`, `samples` (roll-outs), `tried`: of each scale, in rising order, `scale`, `nll` (nats), `ece_15` and
    `accuracy`.
    """
    from scipy.optimize import minimize_scalar  # inside, since importing it takes long and few jobs fit

    tried: dict[float, dict[str, float]] = {}
    samples = 1

    def loss(scale: float) -> float:
        nonlocal samples
        scale = round(float(scale), 4)
        if scale not in tried:
            predictions = predict(scale)
            samples = max(samples, len(predictions.logits))
            tried[scale] = {name: metric(predictions) for name, metric in MEASURED.items()}
        return tried[scale]["nll"]

    best = int(np.argmin([loss(scale) for scale in GRID]))
    around = GRID[max(best - 1, 0)], GRID[min(best + 1, len(GRID) - 1)]
    minimize_scalar(loss, bounds=around, method="bounded", options={"maxiter": REFINED, "xatol": RESOLUTION})
    rows = [{"scale": scale, **tried[scale]} for scale in sorted(tried)]
    return {"scale": min(rows, key=lambda row: row["nll"])["scale"], "samples": samples, "tried": rows}


def fit_into_file(path: str | Path, about: Mapping[str, Any], predict: Callable[[float], Predictions]) -> float:
    """The scale that `fit_noise_scale` takes; all that it gives is written to `path`, with notes of what it is of."""
    fitted = fit_noise_scale(predict)
    write_json(path, {"format": FORMAT, "about": dict(about), **fitted})
    return fitted["scale"]


def read_noise_scale(path: str | Path) -> dict[str, Any]:
    """What `fit_into_file` wrote; InputError for a file that is not that."""
    content = read_json(path)
    with reading(path, f"a file of noise scales, {FORMAT}", "delete it and run the same command again"):
        if content["format"] != FORMAT:
            raise ValueError(f"its format is {content['format']!r}")
        numbers = [content["scale"], *(row[key] for row in content["tried"] for key in ("scale", *MEASURED))]
        if not content["tried"] or not all(isinstance(number, int | float) for number in numbers):
            raise ValueError(f"it holds {json.dumps(content)[:80]}")
        return content

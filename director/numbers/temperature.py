"""Temperature scaling (Guo et al. 2017): one number T > 0 that divides the logits."""

import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from director.errors import InputError
from director.files import file_digest, write_json
from director.numbers.metrics import nll
from director.numbers.predictions import Predictions, log_softmax
from director.numbers.suites import (
    Made,
    largest,
    load_suite,
    manifest_of,
    read_cost,
    suite_file,
    suites_of,
    write_suites,
)
from director.provenance import git_commit, versions


def fit_temperature(predictions: Predictions, lower: float = 0.05, upper: float = 20.0) -> float:
    """The T in [lower, upper] with the least negative log-likelihood of `predictions`, pooled by softmax.

    The NLL is convex in b = 1/T. Its slope is mean_i(E_p[z_i] - z_i,label) with p = softmax(b z), and T is where the
    slope is 0, to full precision. If the slope does not change its sign between the bounds (every label is predicted,
    or the logits say nothing about the labels), the better bound is given, with a warning. Fit on validation data,
    never on the test set. `InputError` without labels, or unless 0 < lower < upper.
    """
    if not 0 < lower < upper < np.inf:
        raise InputError(f"temperatures from {lower} to {upper}: give 0 < lower < upper")
    logits, label_logit = predictions.log_probabilities, predictions.log_likelihood

    def slope(inverse: float) -> float:
        probabilities = np.exp(log_softmax(inverse * logits))
        return float((np.einsum("nc,nc->n", probabilities, logits) - label_logit).mean())

    from scipy.optimize import brentq  # inside, since importing scipy takes long and most jobs fit no temperature

    if slope(1 / upper) >= 0:
        return _at_bound(upper, "the logits tell little of the labels")
    if slope(1 / lower) <= 0:
        return _at_bound(lower, "every label is predicted, or nearly so: use more or harder validation data")
    return 1 / brentq(slope, 1 / upper, 1 / lower, xtol=1e-15, rtol=1e-15)


def scale(predictions: Predictions, temperature: float) -> Predictions:
    """`predictions`, pooled by softmax, with logits divided by `temperature`; the predicted classes are the same.

    The result has S = 1, its logits are log-probabilities in float64, and its `about` holds the temperature.
    """
    if not 0 < temperature < np.inf:
        raise InputError(f"temperature {temperature}: give a positive number")
    pooled = predictions.pool()
    logits = log_softmax(pooled.logits / temperature)
    return replace(pooled, logits=logits, about={**pooled.about, "temperature": float(temperature)})


def scale_run(
    run_folder: str | Path,
    scaled: Mapping[str, str],
    temperatures_file: str | Path,
    *,
    lower: float,
    upper: float,
    about: Mapping[str, Any],
) -> None:
    """Fit a temperature for each scaled method of a run folder; write its predictions, last what was fitted.

    scaled: method -> the method whose predictions it scales. T is fitted on its suite `val`, all samples pooled, and
    every other suite is written scaled. lower, upper: bounds of T. about: goes into the predictions' `about`, such as
    the digest of the code. temperatures_file: JSON, method -> `scales` (the method that was scaled), `temperature`,
    `validation_nll` in nats, `before` and `after` scaling.
    """
    fitted = {}
    for method, source in scaled.items():
        validation = load_suite(manifest_of(run_folder, source), "val")
        temperature = fit_temperature(validation, lower, upper)
        _write_scaled(run_folder, method, source, temperature, {**about, "method": method})
        validation_nll = {"before": nll(validation), "after": nll(scale(validation, temperature))}
        fitted[method] = {"scales": source, "temperature": temperature, "validation_nll": validation_nll}
    write_json(temperatures_file, fitted)


def _write_scaled(
    run_folder: str | Path, method: str, source: str, temperature: float, about: Mapping[str, Any]
) -> None:
    """Write all suites of `source` but `val`, scaled, as the predictions of `method`."""
    manifest = manifest_of(run_folder, source)
    suites = [suite for suite in suites_of(manifest) if suite != "val"]
    cost = read_cost(manifest.with_name("cost.json"), suites)
    suite_costs = cost.pop("suites")
    origin = {**about, "versions": versions("numpy", "scipy")}

    def make(suite: str) -> Made:
        predictions = scale(load_suite(manifest, suite), temperature)
        # Scaling takes no time worth counting: the samples that were pooled had to be predicted.
        seconds = {predictions.about["samples"]: largest(suite_costs[suite]["seconds"])}
        notes = {**predictions.about, **origin, "commit": git_commit()}
        return Made(replace(predictions, about=notes), seconds)

    identities = {
        suite: {"source": file_digest(suite_file(manifest, suite)), "temperature": temperature, **origin}
        for suite in suites
    }
    write_suites(manifest_of(run_folder, method).parent, identities, make, lambda: cost)


def _at_bound(bound: float, reason: str) -> float:
    warnings.warn(f"temperature {bound} is a bound of its search: {reason}", stacklevel=3)
    return float(bound)

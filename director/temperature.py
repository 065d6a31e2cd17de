"""Temperature scaling (Guo et al. 2017): one number T > 0 that divides the logits."""

import warnings
from dataclasses import replace

import numpy as np
from scipy.optimize import brentq

from director.files import InputError
from director.predictions import Predictions, log_softmax


def fit_temperature(predictions: Predictions, lower: float = 0.05, upper: float = 20.0) -> float:
    """The T in [lower, upper] with the least negative log-likelihood of `predictions`, pooled by softmax.

    The NLL is convex in b = 1/T, with slope mean_i(E_p[z_i] - z_i,label), p = softmax(b z); its only root is
    found to full precision. A slope of one sign throughout (every label predicted, or logits that say nothing
    of the labels) ends at a bound, with a warning. Fit on validation data, never on the test set.
    `InputError` without labels, or unless 0 < lower < upper.
    """
    if not 0 < lower < upper < np.inf:
        raise InputError(f"temperatures from {lower} to {upper}: give 0 < lower < upper")
    logits, label_logit = predictions.log_probabilities, predictions.log_likelihood

    def slope(inverse: float) -> float:
        probabilities = np.exp(log_softmax(inverse * logits))
        return float((np.einsum("nc,nc->n", probabilities, logits) - label_logit).mean())

    if slope(1 / upper) >= 0:
        return _at_bound(upper, "the logits tell little of the labels")
    if slope(1 / lower) <= 0:
        return _at_bound(lower, "every label is predicted, or nearly so: use more or harder validation data")
    return 1 / brentq(slope, 1 / upper, 1 / lower, xtol=1e-15, rtol=1e-15)


def scale(predictions: Predictions, temperature: float) -> Predictions:
    """`predictions`, pooled by softmax, with logits divided by `temperature`; the predicted classes stay.

    S = 1, logits are log-probabilities in float64; `about` receives the temperature.
    """
    if not 0 < temperature < np.inf:
        raise InputError(f"temperature {temperature}: give a positive number")
    pooled = predictions.pool()
    logits = log_softmax(pooled.logits / temperature)
    return replace(pooled, logits=logits, about={**pooled.about, "temperature": float(temperature)})


def _at_bound(bound: float, reason: str) -> float:
    warnings.warn(f"temperature {bound} is a bound of its search: {reason}", stacklevel=3)
    return float(bound)

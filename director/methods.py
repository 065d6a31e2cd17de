"""What a row of the tables is: a backbone, by the attention it has, and a method, by what it predicts with and how.

A method is one entry of METHODS, a kind of attention one of ATTENTIONS: settings, plan, rules and jobs read what they
need from the entry, and nothing else knows a method by its name.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

Randomness = Literal["none", "dropout", "noise"]
NOISE, TEMPERATURE = "_noise", "_temperature"  # endings of methods that are made of others
POOLED = "pooled"  # in place of the seed, of a run that is made of all seeds


@dataclass(frozen=True)
class Method:
    """One way to get predictions.

    A method either predicts with a trained model, or scales or pools what another method predicts.

    weights: what it predicts with, the `backbone`, the same at its epoch of the lowest validation NLL (`early`), the
    backbone with a posterior of its last layer (`laplace`), or the `student` that it trains on the backbone's path.
    randomness: where its samples come from: `none` (one pass), `dropout` masks, or the model's own `noise`. posterior:
    the attention whose posterior it samples. scales: the method whose predictions it divides by a temperature. pools:
    the method whose runs of several seeds it averages. members: how many seeds; None for all of them.
    samples: numbers of samples S of an experiment, one row of the table for each; None for a single pass. student: the
    method whose training gives the student that it predicts with. fits_noise: the scale of the noise is fitted on
    validation data. needs: the package of an extra without which it cannot be predicted.

    Endings make further methods of these, see `director.settings.experiment.Experiment.method`: `<method>_noise` of a
    student, `<method>_temperature` of any method that has validation predictions, and `<method>_<k>` of an ensemble.
    """

    name: str
    weights: Literal["backbone", "early", "laplace", "student"] | None = None
    randomness: Randomness = "none"
    posterior: str | None = None
    scales: str | None = None
    pools: str | None = None
    members: int | None = None
    samples: Callable[[Any], list[int]] | None = None
    student: str | None = None
    fits_noise: bool = False
    needs: str | None = None

    def in_words(self) -> str:
        """What the method does, for a reader of the tables."""
        if self.scales:
            return f"the predictions of {self.scales}, divided by one temperature that is fitted on validation data"
        if self.pools:
            number = f"{self.members} seeds, its own and those that follow" if self.members else "all seeds"
            return f"the predictions of {self.pools}, averaged over the models of {number}"
        model = {
            "backbone": "the trained backbone",
            "early": "the backbone at its epoch of the lowest validation NLL",
            "laplace": "the trained backbone with a Laplace approximation of its last layer",
            "student": f"the student {self.student}, distilled from the backbone's path",
        }.get(self.weights, str(self.weights))
        noise = f"samples of its {self.posterior} posterior" if self.posterior else "roll-outs with noise"
        how = {"none": "one pass", "dropout": "samples with dropout on", "noise": noise}[self.randomness]
        fitted = ", which is multiplied by a number that is fitted on validation data" if self.fits_noise else ""
        return f"{model}, {how}{fitted}"

    def with_fitted_noise(self) -> "Method":
        """This method with its noise scaled; its row has the most samples, with which the scale is fitted."""
        samples = self.samples
        return replace(self, name=self.name + NOISE, samples=lambda chosen: [max(samples(chosen))], fits_noise=True)

    @property
    def pools_all(self) -> bool:
        """Whether it averages all seeds, so that an experiment has one run of it."""
        return self.pools is not None and self.members is None

    def of_members(self, number: int) -> "Method":
        """This ensemble, of so many members: a row with a run for each seed, as other rows have."""
        return replace(self, name=f"{self.name}_{number}", members=number)

    def with_temperature(self) -> "Method":
        """What this method predicts, divided by a temperature."""
        return Method(self.name + TEMPERATURE, scales=self.name)


@dataclass(frozen=True)
class Attention:
    """One kind of attention that a backbone may have in place of softmax.

    settings: its section of an experiment's settings, as `KepSvgp` in director/settings/training.py.
    """

    name: str
    settings: Callable[[Any], Any]


METHODS = {
    method.name: method
    for method in (
        Method("mle", "backbone"),
        Method("mle_early", "early"),
        Method("temperature", scales="mle"),
        Method("laplace", "laplace", needs="laplace"),
        Method(
            "mc_dropout", weights="backbone", randomness="dropout", samples=lambda chosen: chosen.mc_dropout.samples
        ),
        Method("ensemble", pools="mle"),
        Method("kep_svgp", "backbone", "noise", posterior="kep_svgp", samples=lambda chosen: chosen.kep_svgp.samples),
        Method("sgpa", "backbone", "noise", posterior="sgpa", samples=lambda chosen: chosen.sgpa.samples),
        Method("temperature_ensemble", pools="temperature"),
        Method("director", "student", "noise", samples=lambda chosen: chosen.director.samples, student="director"),
    )
}
STUDENT = METHODS["director"]  # `director_<name>` is this method with the settings of the variant <name>

ATTENTIONS = {
    attention.name: attention
    for attention in (
        Attention("kep_svgp", settings=lambda chosen: chosen.kep_svgp),
        Attention("sgpa", settings=lambda chosen: chosen.sgpa),
    )
}
# softmax attention in every layer, or another in all layers, or in the last so many
BACKBONE_PATTERN = f"^(softmax|({'|'.join(ATTENTIONS)})_(all|[1-9][0-9]*))$"
ENSEMBLE_PATTERN = f"({'|'.join(name for name, method in METHODS.items() if method.pools)})_([2-9])"
METHOD_PATTERN = f"^({'|'.join(METHODS)}|{ENSEMBLE_PATTERN}|{STUDENT.name}_[a-z0-9_]+)({NOISE})?({TEMPERATURE})?$"


def attention_of(backbone: str, depth: int | None) -> tuple[Attention | None, int]:
    """The attention that a backbone of `depth` layers has in place of softmax, and in how many layers, the last ones.

    `softmax` has none, in 0 layers. backbone: a name that BACKBONE_PATTERN allows.
    """
    if backbone == "softmax":
        return None, 0
    name, number = re.fullmatch(r"(.+)_(all|\d+)", backbone).groups()
    return ATTENTIONS[name], depth if number == "all" else int(number)

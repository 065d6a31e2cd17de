"""What a row of the tables is: a backbone, by the attention it has, and a method, by what it predicts with and how.

A method is one entry of METHODS, a kind of attention one of ATTENTIONS: settings, plan, rules and jobs read what they
need from the entry, and nothing else knows a method by its name.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Randomness = Literal["none", "dropout", "noise"]
POOLED = "pooled"  # in place of the seed, of a run that is made of all seeds


@dataclass(frozen=True)
class Method:
    """One way to get predictions.

    A method either predicts with a trained model, or scales or pools what another method predicts.

    weights: what it predicts with, the `backbone` or the `student` that it trains on the backbone's path. randomness:
    where its samples come from: `none` (one pass), `dropout` masks, or the model's own `noise`. posterior: it needs a
    backbone whose attention is random. scales: the method whose predictions it divides by a temperature. pools: the
    method whose runs of all seeds it averages. samples: numbers of samples S of an experiment, one row of the table
    for each; None for a single pass.
    """

    name: str
    weights: Literal["backbone", "student"] | None = None
    randomness: Randomness = "none"
    posterior: bool = False
    scales: str | None = None
    pools: str | None = None
    samples: Callable[[Any], list[int]] | None = None


@dataclass(frozen=True)
class Attention:
    """One kind of attention that a backbone may have in place of softmax.

    posterior: whether it is random, so that a row may sample it. settings: its section of an experiment's settings.
    """

    name: str
    posterior: bool
    settings: Callable[[Any], Any]


METHODS = {
    method.name: method
    for method in (
        Method("mle", "backbone"),
        Method("temperature", scales="mle"),
        Method(
            "mc_dropout", weights="backbone", randomness="dropout", samples=lambda chosen: chosen.mc_dropout.samples
        ),
        Method("ensemble", pools="mle"),
        Method("kep_svgp", "backbone", "noise", posterior=True, samples=lambda chosen: chosen.kep_svgp.samples),
        Method("director", "student", "noise", samples=lambda chosen: chosen.director.samples),
        Method("director_temperature", scales="director"),
    )
}
STUDENT = METHODS["director"]  # `director_<name>` is this method with the settings of the variant <name>

ATTENTIONS = {
    attention.name: attention
    for attention in (Attention("kep_svgp", posterior=True, settings=lambda chosen: chosen.kep_svgp),)
}
# softmax attention in every layer, or another in all layers, or in the last so many
BACKBONE_PATTERN = f"^(softmax|({'|'.join(ATTENTIONS)})_(all|[1-9][0-9]*))$"
METHOD_PATTERN = f"^({'|'.join(METHODS)}|{STUDENT.name}_[a-z0-9_]+)$"


def attention_of(backbone: str, depth: int) -> tuple[Attention | None, int]:
    """The attention that a backbone of `depth` layers has in place of softmax, and in how many layers, the last ones.

    `softmax` has none, in 0 layers. backbone: a name that BACKBONE_PATTERN allows.
    """
    if backbone == "softmax":
        return None, 0
    name, number = re.fullmatch(r"(.+)_(all|\d+)", backbone).groups()
    return ATTENTIONS[name], depth if number == "all" else int(number)

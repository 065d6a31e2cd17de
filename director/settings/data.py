"""The section `data` of an experiment: the data set that trains and tests, and the suites that shift it."""

from typing import Literal

from pydantic import Field, model_validator

from director.data.catalogue import DATASETS, origins
from director.data.examples import Augmentation, Normalisation
from director.schema import Positive, Schema

DatasetName = Literal[tuple(DATASETS)]
Protocol = Literal[tuple(dict.fromkeys(name for described in DATASETS.values() for name in described.protocols))]


class Data(Schema):
    """The data set that trains and tests, and the suites that shift it."""

    name: DatasetName = Field(description="data set that trains, selects and tests")
    train: Positive = Field(description="number of training examples")
    validation: Positive = Field(description="number of validation examples: they choose epochs and temperatures")
    corrupted: Literal[tuple(name for name, described in DATASETS.items() if described.made_from)] | None = Field(
        None, description="data set of the suite `corrupted`: the test examples, shifted"
    )
    corrupted_examples: Positive | None = Field(
        None, description="test examples in the suite `corrupted`, evenly spaced; null for all"
    )
    shifted: Literal[tuple(name for name, described in DATASETS.items() if described.shift_of)] | None = Field(
        None, description="data set of the suite `shifted`: other examples of the same task, from elsewhere"
    )
    out_of_distribution: list[DatasetName] = Field([], description="data sets of the suites `ood-<name>`")
    test_examples: Positive | None = Field(
        None, description="examples in each of the suites `test`, `shifted` and `ood-`, evenly spaced; null for all"
    )
    protocol: Protocol = Field(
        "held_out", description="cola only; paper: the test part also selects and calibrates, as in the authors' code"
    )
    normalisation: Normalisation | None = Field(
        None, description="of all images; null for texts, and for a pretrained model, whose checkpoint has its own"
    )
    augmentation: Augmentation | None = Field(None, description="augmentation of the training images; null for none")

    @model_validator(mode="after")
    def of_one_kind(self) -> "Data":
        described = DATASETS[self.name]
        for name in [name for name in (self.corrupted, self.shifted, *self.out_of_distribution) if name]:
            if (kind := DATASETS[name].kind) != described.kind:
                raise ValueError(f"{self.name} holds {described.kind}, {name} {kind}: no model reads both; drop one")
        if self.corrupted and self.name not in DATASETS[self.corrupted].made_from:
            raise ValueError(f"corrupted {self.corrupted!r} is not a shifted copy of {self.name!r}; choose its own")
        if self.shifted and (owner := DATASETS[self.shifted].shift_of) != self.name:
            raise ValueError(f"shifted {self.shifted!r} belongs to {owner!r}, not to {self.name!r}")
        if self.protocol not in described.protocols:
            owners = ", ".join(name for name, other in DATASETS.items() if self.protocol in other.protocols)
            raise ValueError(f"protocol {self.protocol!r} is for {owners}, not for {self.name}; leave it out")
        if described.kind == "texts" and (self.normalisation or self.augmentation):
            raise ValueError(f"{self.name} holds texts: leave out normalisation and augmentation, which are for images")
        return self

    @model_validator(mode="after")
    def foreign_sets_are_foreign(self) -> "Data":
        foreign = self.out_of_distribution
        if twice := [name for name in foreign if foreign.count(name) > 1]:
            raise ValueError(f"out_of_distribution names {twice[0]} twice; keep it once")
        for name in foreign:
            if name == self.name:
                raise ValueError(f"out_of_distribution names {name}, the experiment's own data set; drop it")
            if origins(name) & origins(self.name):
                raise ValueError(f"out_of_distribution names {name}, a copy of the images of {self.name}; drop it")
        return self

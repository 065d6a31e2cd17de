"""The schema of a study: every key of config/config.yaml and config/experiments/*.yaml, described once.

Defaults, the JSON schemas (config/*.schema.json) and the option page (docs/options.md) are generated from here.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from director.data.catalogue import DATASETS
from director.methods import (
    BACKBONE_PATTERN,
    ENSEMBLE_PATTERN,
    METHOD_PATTERN,
    METHODS,
    NOISE,
    STUDENT,
    TEMPERATURE,
    Method,
    attention_of,
)
from director.schema import Positive, Schema
from director.settings.data import Data
from director.settings.model import ImageModel, PretrainedModel, TextModel
from director.settings.suite import Suite
from director.settings.training import Compute, KepSvgp, McDropout, Sgpa, Student, Training

BackboneName = Annotated[str, Field(pattern=BACKBONE_PATTERN)]
MethodName = Annotated[str, Field(pattern=METHOD_PATTERN)]


class Temperature(Schema):
    """Temperature scaling (Guo et al., ICML 2017)."""

    lower: float = Field(0.05, gt=0, description="smallest temperature searched")
    upper: float = Field(20.0, gt=0, description="largest temperature searched")

    @model_validator(mode="after")
    def ordered(self) -> "Temperature":
        if self.lower >= self.upper:
            raise ValueError(f"lower {self.lower} is not below upper {self.upper}")
        return self


class Comparison(Schema):
    """Paired differences to one row, with bootstrap intervals (docs/metrics.md)."""

    reference: tuple[BackboneName, MethodName] = Field(
        ("softmax", "mle"),
        strict=False,  # YAML has lists, no tuples
        description="backbone and method that the other rows are compared with",
    )
    replicates: int = Field(1000, ge=100, description="bootstrap replicates behind an interval")
    level: float = Field(0.95, gt=0, lt=1, description="coverage of the intervals")


class Published(Schema):
    """Published numbers to stand beside ours, at the row of the most samples; raw units (0.8474, not 84.74)."""

    accuracy: float | None = Field(None, ge=0, le=1, description="published accuracy")
    mcc: float | None = Field(None, ge=-1, le=1, description="published Matthews correlation coefficient")
    ece_15: float | None = Field(None, ge=0, le=1, description="published expected calibration error, 15 bins")
    source: str = Field(description="where the numbers are printed: paper and table")


class Experiment(Schema):
    """One experiment: a data set, a backbone recipe, and the methods that the table compares."""

    data: Data = Field(description="data set and suites")
    model: ImageModel | TextModel | PretrainedModel = Field(discriminator="kind", description="backbone")
    training: Training = Field(Training(), description="training of the backbone")
    seeds: list[Annotated[int, Field(ge=0)]] = Field(
        min_length=1, description="seeds of split, weights, order, dropout; paper: 0-4"
    )
    methods: dict[BackboneName, list[MethodName]] = Field(
        min_length=1, description="rows of the table: backbone -> methods"
    )
    mc_dropout: McDropout = Field(McDropout(), description="options of the row `mc_dropout`")
    kep_svgp: KepSvgp = Field(KepSvgp(), description="backbones kep_svgp_* and the row `kep_svgp`")
    sgpa: Sgpa = Field(Sgpa(), description="backbones sgpa_* and the row `sgpa`")
    director: Student = Field(Student(), description="the method")
    variants: dict[Annotated[str, Field(pattern=r"^[a-z0-9_]+$")], Student] = Field(
        {}, description="rows `director_<name>`: only what differs from `director` is written"
    )
    temperature: Temperature = Field(Temperature(), description="options of the rows that a temperature scales")
    comparison: Comparison = Field(Comparison(), description="options of comparison.csv")
    precision: Literal["float32", "bfloat16"] = Field("float32", description="bfloat16: autocast of every forward pass")
    predict_batch: Positive = Field(
        512,
        description="rows per forward pass in validation and prediction, samples included; also moves dropout masks",
    )
    published: dict[BackboneName, dict[MethodName, Published]] = Field(
        {}, description="published numbers: backbone -> method"
    )

    @model_validator(mode="before")
    @classmethod
    def variants_differ(cls, content: Any) -> Any:
        """A variant is the experiment's `director` but for what it names."""
        if not isinstance(content, dict) or not isinstance(content.get("variants"), dict):
            return content
        base = content.get("director") or {}
        return content | {"variants": {name: merged(base, part) for name, part in content["variants"].items()}}

    @field_validator("model", mode="before")
    @classmethod
    def image_unless_named(cls, content: Any) -> Any:
        return {"kind": "image", **content} if isinstance(content, dict) else content

    @field_validator("methods", "published")
    @classmethod
    def in_one_order(cls, table: dict[str, Any]) -> dict[str, Any]:
        """The order of keys in the file says nothing: softmax first, then by name."""
        return dict(sorted(table.items(), key=lambda item: (item[0] != "softmax", item[0])))

    @model_validator(mode="after")
    def consistent(self) -> "Experiment":
        rows = [(backbone, name) for backbone, names in self.methods.items() for name in names]
        for key, values in (("seeds", self.seeds), ("methods", rows)):
            if len(set(values)) < len(values):
                raise ValueError(f"{key} {values} names one twice; keep it once")
        if isinstance(self.model, PretrainedModel):
            self._check_pretrained()
        for backbone, name in rows:
            self._check_row(backbone, name)
        if clash := [name for name in self.variants if f"_{name}".endswith((NOISE, TEMPERATURE))]:
            raise ValueError(
                f"variants: {clash[0]}: {STUDENT.name}_{clash[0]} is another row; name the variant otherwise"
            )
        for name, student in {STUDENT.name: self.director, **self.variants}.items():
            if student.trajectory.source == "cache" and _cached(student) != _cached(self.director):
                raise ValueError(
                    f"variants: {name} reads the cache that `director` describes, but differs in views, dtype or "
                    "softmax_variance; set its trajectory.source to live"
                )
            if student.losses.softmax_variance == "dropout_moments" and self.model.dropout == 0:
                raise ValueError(f"{name}: softmax_variance dropout_moments needs model.dropout above 0; raise it")
        if self.comparison.reference not in rows:
            raise ValueError(f"comparison.reference {self.comparison.reference} is not among the methods {rows}")
        return self

    def _check_pretrained(self) -> None:
        """Raise ValueError for rows that a pretrained model cannot have."""
        if others := [backbone for backbone in self.methods if attention_of(backbone, None)[0]]:
            raise ValueError(
                f"methods: backbone {others[0]}: a model of kind pretrained has softmax attention in all layers; "
                "use the backbone softmax, or another model.kind"
            )
        pooling = [name for names in self.methods.values() for name in names if self.method(name).pools]
        if pooling and not self.model.fine_tune:
            raise ValueError(
                f"methods: {pooling[0]}: with model.fine_tune false the model is the same for every seed; drop the "
                "method, or set fine_tune to true"
            )

    def _check_row(self, backbone: str, name: str) -> None:
        """Raise ValueError for a row that could not be made."""
        attention, layers = attention_of(backbone, self.model.depth)
        if attention and layers > self.model.depth:
            raise ValueError(f"methods: backbone {backbone} has more layers than model.depth {self.model.depth}")
        method = self.method(name)
        if method.posterior and (attention is None or attention.name != method.posterior):
            raise ValueError(
                f"methods: {name} on {backbone}: no such posterior to sample; use a backbone {method.posterior}_*"
            )
        if method.pools and len(self.seeds) < 2:
            raise ValueError(f"an {name} needs two seeds, not {self.seeds}; add a seed or drop the method {name}")
        if method.members and method.members >= len(self.seeds):
            raise ValueError(
                f"{name} needs more than {method.members} seeds, not {self.seeds}; the ensemble of all of them is "
                f"{name.removesuffix(f'_{method.members}')}"
            )
        if method.pools and self.method(method.pools).scales and method.pools not in self.methods[backbone]:
            raise ValueError(f"{name} pools the row {method.pools} of {backbone}; add it to the methods")
        if method.randomness == "dropout":
            samples = method.samples(self)
            if min(samples) < 2:
                raise ValueError(f"{name}.samples {samples}: one pass says nothing; use 2 or more")
            if self.model.dropout == 0:
                raise ValueError(f"{name} needs model.dropout above 0; raise it or drop the method {name}")

    @model_validator(mode="after")
    def model_reads_the_data(self) -> "Experiment":
        holds, normal = DATASETS[self.data.name].kind, self.data.normalisation
        if isinstance(self.model, PretrainedModel):
            if fault := self.model.fault_with(holds):
                raise ValueError(f"model.{fault}")
        else:
            kind = {"texts": "text", "images": "image"}[holds]
            if self.model.kind != kind:
                raise ValueError(
                    f"model.kind is {self.model.kind}, but {self.data.name} holds {kind}s; set it to {kind}"
                )
            if holds == "images" and normal is None:
                raise ValueError(
                    f"data: {self.data.name} holds images: add normalisation, the mean and std of its training pixels"
                )
        if holds == "texts":
            for backbone in self.methods:
                attention, _ = attention_of(backbone, self.model.depth)
                if attention and (fault := attention.settings(self).fault_with_texts()):
                    raise ValueError(f"{attention.name}.{fault}")
        elif normal is not None and not len(normal.mean) == len(normal.std) == self.model.channels:
            raise ValueError(
                f"normalisation has {len(normal.mean)} means, {len(normal.std)} stds for {self.model.channels} channels"
            )
        return self

    def method(self, name: str) -> Method:
        """The method of a row: an entry of METHODS, the student's with the settings of a variant, or one made of these.

        <method>_temperature: scaled by a temperature. <student>_noise: with a fitted noise scale. <ensemble>_<k>: of k
        members. Raises ValueError for a name that is none of them.
        """
        if name in METHODS and name != STUDENT.name:
            return METHODS[name]
        if ensemble := re.fullmatch(ENSEMBLE_PATTERN, name):
            return METHODS[ensemble[1]].of_members(int(ensemble[2]))
        if name.endswith(TEMPERATURE):
            scaled = self.method(name.removesuffix(TEMPERATURE))
            if scaled.pools or scaled.scales:
                reason = "has no validation predictions" if scaled.pools else "is scaled already"
                raise ValueError(f"methods: {name}: {scaled.name} {reason}; drop the method {name}")
            if twin := [method.name for method in METHODS.values() if method.scales == scaled.name]:
                raise ValueError(f"methods: {name} is the row {twin[0]}; call it that")
            return scaled.with_temperature()
        if name.endswith(NOISE):
            sampled = self.method(name.removesuffix(NOISE))
            if sampled.student is None or sampled.randomness != "noise":
                raise ValueError(f"methods: {name}: {sampled.name} has no noise of a student, which could be scaled")
            return sampled.with_fitted_noise()
        if name != STUDENT.name and name.removeprefix(f"{STUDENT.name}_") not in self.variants:
            known = ", ".join(self.variants) or "none"
            raise ValueError(f"methods: {name}: no variant {name.removeprefix(f'{STUDENT.name}_')!r}; known: {known}")
        variant = self.student(name)
        sampled = replace(STUDENT, name=name, samples=lambda chosen: variant.samples, student=name)
        return sampled if variant.noise else replace(sampled, randomness="none", samples=None)

    def student(self, name: str) -> Student:
        """Settings of a student by the name of the method that trains it, `Method.student`."""
        return self.director if name == STUDENT.name else self.variants[name.removeprefix(f"{STUDENT.name}_")]

    def samples_of(self, name: str) -> list[int] | None:
        """Numbers of samples that a method's rows are made with; None for a method that gives what it has."""
        method = self.method(name)
        return method.samples(self) if method.samples else None

    def training_of(self, backbone: str) -> Training:
        """How a backbone is trained: its attention's own training, if that has one."""
        attention, _ = attention_of(backbone, self.model.depth)
        return (attention.settings(self).training if attention else None) or self.training

    def attention_layers(self, backbone: str) -> dict[str, Any] | None:
        """What a backbone has in place of softmax, see `director.models.transformers.Transformer`; None for nothing."""
        attention, layers = attention_of(backbone, self.model.depth)
        return attention and {"kind": attention.name, "layers": layers, **attention.settings(self).layer()}

    def penalties_of(self, backbone: str) -> dict[str, float]:
        """Weights of what a backbone's attention adds to its loss; none for softmax."""
        attention, _ = attention_of(backbone, self.model.depth)
        return attention.settings(self).penalties() if attention else {}

    def annealing_of(self, backbone: str) -> float:
        """Share of a backbone's training in which these weights rise from 0; 0 for weights that are the same always."""
        attention, _ = attention_of(backbone, self.model.depth)
        return attention.settings(self).annealing if attention else 0.0

    @property
    def suites(self) -> dict[str, Suite]:
        """The suites of predictions that every method makes, by name; `val` comes first."""
        data, at_most = self.data, self.data.test_examples
        suites = {
            "val": Suite(dataset=data.name, part="validation", labelled=True),
            "test": Suite(dataset=data.name, part="test", labelled=True, at_most=at_most),
        }
        if data.corrupted:
            limit = data.corrupted_examples
            suites["corrupted"] = Suite(dataset=data.corrupted, part="test", labelled=True, at_most=limit)
        if data.shifted:
            suites["shifted"] = Suite(dataset=data.shifted, part=None, labelled=True, at_most=at_most)
        for name in data.out_of_distribution:
            suites[f"ood-{name}"] = Suite(dataset=name, part=None, labelled=False, at_most=at_most)
        return suites


class Configuration(Schema):
    """config/config.yaml: which experiments enter the tables, and on what they run."""

    experiments: list[str] = Field(min_length=1, description="names of files in config/experiments, without .yaml")
    compute: Compute = Field(Compute(), description="the machine")


def _cached(student: Student) -> tuple[Any, ...]:
    """What a cache of the teacher's path depends on."""
    return student.trajectory.views, student.trajectory.dtype, student.losses.softmax_variance


def merged(base: Any, part: Any) -> Any:
    """`base` with the keys that `part` names replaced, table by table."""
    if not (isinstance(base, Mapping) and isinstance(part, Mapping)):
        return part
    return {**base, **{key: merged(base.get(key), value) for key, value in part.items()}}

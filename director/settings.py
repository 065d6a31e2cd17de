"""The schema of the settings: every key of config/config.yaml and config/experiments/*.yaml, described once.

Defaults, the JSON schemas (config/*.schema.json) and the option page (docs/options.md) are generated from here.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from director.sections import TEXTS, Data, ImageModel, Positive, Rate, Schema, TextModel

# softmax attention in every layer, or KEP-SVGP in all or the last k layers
Backbone = Annotated[str, Field(pattern=r"^(softmax|kep_svgp_(all|[1-9]\d*))$")]
# director_<name> is a variant of the experiment's student
Method = Annotated[str, Field(pattern=r"^(mle|temperature|mc_dropout|ensemble|kep_svgp|director(_[a-z0-9_]+)?)$")]
Samples = Annotated[list[Positive], Field(min_length=1), AfterValidator(lambda numbers: sorted(set(numbers)))]


class Training(Schema):
    """One plain loop: Adam with L2, warm-up, cosine, an epoch chosen by validation (method.md, section 6)."""

    epochs: Positive = Field(300, description="passes over the training examples; paper: 300")
    batch_size: Positive = Field(128, description="examples per step; paper: 128")
    learning_rate: float = Field(1e-3, gt=0, description="peak of the schedule; paper: 1e-3")
    final_learning_rate: float = Field(1e-5, ge=0, description="end of the cosine; paper: 1e-5")
    warmup_epochs: float = Field(5, ge=0, description="epochs of linear warm-up; paper: 5")
    weight_decay: float = Field(5e-5, ge=0, description="L2 coefficient inside Adam; paper: 5e-5")
    gradient_clip: float | None = Field(1.0, gt=0, description="largest norm of the gradient; null for none")
    selection: Literal["val_accuracy", "val_mcc", "val_nll", "last"] = Field(
        "val_accuracy", description="validation number of the best epoch, or last: no epoch is chosen"
    )

    @model_validator(mode="after")
    def warm_up_ends(self) -> "Training":
        if self.warmup_epochs >= self.epochs:
            raise ValueError(f"warmup_epochs {self.warmup_epochs} does not end before epochs {self.epochs}")
        return self


class McDropout(Schema):
    """Monte Carlo dropout (Gal and Ghahramani, 2016; baselines.md, section 3)."""

    samples: Samples = Field([10], description="stochastic passes per input, one row of the table for each; paper: 10")


class KepSvgp(Schema):
    """Kernel-eigenpair attention, for backbones kep_svgp_* and the row `kep_svgp` (baselines.md, section 5)."""

    variant: Literal["concat", "sum"] = Field("concat", description="how left and right singular features are combined")
    rank: Positive = Field(10, description="singular features per head; paper: 10")
    multiplier: Positive = Field(10, description="rank x multiplier tokens carry the projections; paper: 10")
    eta_ksvd: float = Field(10.0, ge=0, description="weight of the KSVD loss; paper: 10")
    eta_kl: float = Field(1.0, ge=0, description="weight of the KL divergence; paper: 1")
    training: Training | None = Field(None, description="training of backbones kep_svgp_*; null: as the softmax ones")
    samples: Samples = Field([1, 10], description="posterior samples per input, one row for each; paper: 10")


class Kernel(Schema):
    """The transition kernel shared by all steps (method.md, section 3)."""

    mlp_ratio: float = Field(1.0, gt=0, description="hidden width of its MLP over the width of the stream; paper: 1")
    mlp_first: bool = Field(False, description="MLP before attention; false: the order of a DiT block")
    dropout: Rate = Field(0.1, description="dropout rate in the MLP and the two heads; authors: 0.1 in the heads")


class Losses(Schema):
    """loss = path_weight L1 + task_weight L2 (method.md, section 4)."""

    path: Literal["kl", "mse", "none"] = Field("kl", description="L1, along the teacher's path; mse: the authors' code")
    path_weight: float = Field(1.0, ge=0, description="weight of L1")
    task_weight: float = Field(1.0, ge=0, description="weight of L2, the cross-entropy of a free roll-out")
    std_weight: float = Field(0.0, ge=0, description="within mse: weight of the standard deviations' part")
    variance_floor: float = Field(1e-4, gt=0, description="added to the teacher's variances before the logarithm of kl")
    softmax_variance: Literal["attention_moments", "zero"] = Field(
        "attention_moments", description="variance of a softmax teacher's step (method.md, section 2)"
    )

    @model_validator(mode="after")
    def something_to_learn(self) -> "Losses":
        if (self.path == "none" or self.path_weight == 0) and self.task_weight == 0:
            raise ValueError("path none and task_weight 0 leave nothing to learn; switch one on")
        return self


class TrajectorySource(Schema):
    """Where the teacher's states come from in training; both give the same batches."""

    source: Literal["live", "cache"] = Field("live", description="live: run the teacher; cache: read what it once gave")
    views: Positive | None = Field(None, description="augmented views per example, in turn; null: fresh ones")
    dtype: Literal["float32", "bfloat16", "float16"] = Field("float32", description="numbers in the cache")

    @model_validator(mode="after")
    def cache_is_finite(self) -> "TrajectorySource":
        if self.source == "cache" and self.views is None:
            raise ValueError("a cache needs a number of views; set views (1 without augmentation)")
        return self


class DirectorSettings(Schema):
    """The method: rows `director` and `director_temperature`, on the backbone that is the teacher."""

    kernel: Kernel = Field(Kernel(), description="the student's kernel")
    losses: Losses = Field(Losses(), description="what it learns from")
    training: Training = Field(Training(epochs=100), description="its training; paper: 100 epochs")
    trajectory: TrajectorySource = Field(TrajectorySource(), description="the teacher's path in training")
    samples: Samples = Field([1, 10], description="roll-outs per input, one row of the table for each; paper: 1 and 10")
    selection_samples: Positive = Field(4, description="roll-outs per validation input that select the epoch")


class Temperature(Schema):
    """Temperature scaling (Guo et al., 2017; baselines.md, section 2)."""

    lower: float = Field(0.05, gt=0, description="smallest temperature searched")
    upper: float = Field(20.0, gt=0, description="largest temperature searched")

    @model_validator(mode="after")
    def ordered(self) -> "Temperature":
        if self.lower >= self.upper:
            raise ValueError(f"lower {self.lower} is not below upper {self.upper}")
        return self


class Comparison(Schema):
    """Paired differences to one method (protocols.md, section 3)."""

    reference: tuple[Backbone, Method] = Field(
        ("softmax", "mle"), description="backbone and method that the other rows are compared with"
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
    model: ImageModel | TextModel = Field(discriminator="kind", description="backbone")
    training: Training = Field(Training(), description="training of the backbone")
    seeds: list[Annotated[int, Field(ge=0)]] = Field(
        min_length=1, description="seeds of split, weights, order, dropout; paper: 0-4"
    )
    methods: dict[Backbone, list[Method]] = Field(min_length=1, description="rows of the table: backbone -> methods")
    mc_dropout: McDropout = Field(McDropout(), description="options of the row `mc_dropout`")
    kep_svgp: KepSvgp = Field(KepSvgp(), description="backbones kep_svgp_* and the row `kep_svgp`")
    director: DirectorSettings = Field(DirectorSettings(), description="the method")
    variants: dict[Annotated[str, Field(pattern=r"^[a-z0-9_]+$")], DirectorSettings] = Field(
        {}, description="rows `director_<name>`: only what differs from `director` is written"
    )
    temperature: Temperature = Field(Temperature(), description="options of the row `temperature`")
    comparison: Comparison = Field(Comparison(), description="options of comparison.csv")
    precision: Literal["float32", "bfloat16"] = Field("float32", description="bfloat16: autocast of every forward pass")
    predict_batch: Positive = Field(
        512,
        description="rows per forward pass in prediction, samples included; also moves the masks of mc_dropout",
    )
    published: dict[Backbone, dict[Method, Published]] = Field({}, description="published numbers: backbone -> method")

    @model_validator(mode="before")
    @classmethod
    def variants_differ(cls, content: Any) -> Any:
        """A variant is the experiment's `director` but for what it names."""
        if not isinstance(content, dict) or not isinstance(content.get("variants"), dict):
            return content
        base = content.get("director") or {}
        return content | {"variants": {name: _merged(base, part) for name, part in content["variants"].items()}}

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
        rows = [(backbone, method) for backbone, methods in self.methods.items() for method in methods]
        for name, values in (("seeds", self.seeds), ("methods", rows)):
            if len(set(values)) < len(values):
                raise ValueError(f"{name} {values} names one twice; keep it once")
        for backbone, method in rows:
            if method == "kep_svgp" and backbone == "softmax":
                raise ValueError("methods: kep_svgp on softmax: no posterior to sample; use a backbone kep_svgp_*")
            if backbone.startswith("kep_svgp") and self.kep_layers(backbone) > self.model.depth:
                raise ValueError(f"methods: backbone {backbone} has more layers than model.depth {self.model.depth}")
            variant = method.removeprefix("director_")
            if method.startswith("director_") and variant not in ("temperature", *self.variants):
                raise ValueError(
                    f"methods: {method}: no variant {variant!r}; known: {', '.join(self.variants) or 'none'}"
                )
        if any(name.startswith("temperature") for name in self.variants):
            raise ValueError("variants: a name cannot begin with temperature: director_temperature is another row")
        for name, student in {"director": self.director, **self.variants}.items():
            same = (student.trajectory.views, student.trajectory.dtype, student.losses.softmax_variance) == (
                self.director.trajectory.views,
                self.director.trajectory.dtype,
                self.director.losses.softmax_variance,
            )
            if student.trajectory.source == "cache" and not same:
                raise ValueError(
                    f"variants: {name} reads the cache that `director` describes, but differs in views, dtype or "
                    "softmax_variance; set its trajectory.source to live"
                )
        named = {method for _, method in rows}
        if "ensemble" in named and len(self.seeds) < 2:
            raise ValueError(f"an ensemble needs two seeds, not {self.seeds}; add a seed or drop the method ensemble")
        if "mc_dropout" in named and min(self.mc_dropout.samples) < 2:
            raise ValueError(f"mc_dropout.samples {self.mc_dropout.samples}: one pass says nothing; use 2 or more")
        if "mc_dropout" in named and self.model.dropout == 0:
            raise ValueError("mc_dropout needs model.dropout above 0; raise it or drop the method mc_dropout")
        if self.comparison.reference not in rows:
            raise ValueError(f"comparison.reference {self.comparison.reference} is not among the methods {rows}")
        return self

    @model_validator(mode="after")
    def model_reads_the_data(self) -> "Experiment":
        kind = "text" if self.data.name in TEXTS else "image"
        if self.model.kind != kind:
            raise ValueError(f"model.kind is {self.model.kind}, but {self.data.name} holds {kind}s; set it to {kind}")
        if kind == "text":
            if any(self.kep_layers(backbone) for backbone in self.methods) and self.kep_svgp.variant != "sum":
                raise ValueError(f"kep_svgp.variant {self.kep_svgp.variant}: texts differ in length; set it to sum")
            return self
        normal = self.data.normalisation
        if not len(normal.mean) == len(normal.std) == self.model.channels:
            raise ValueError(
                f"normalisation has {len(normal.mean)} means, {len(normal.std)} stds for {self.model.channels} channels"
            )
        return self

    def students(self, backbone: str) -> list[str]:
        """Methods on a backbone that train a student: `director`, also where it is only scaled, and its variants."""
        rows = ["director" if row == "director_temperature" else row for row in self.methods.get(backbone, [])]
        return list(dict.fromkeys(row for row in rows if row.startswith("director")))

    def director_of(self, method: str) -> DirectorSettings:
        """Settings of a student by the method's name."""
        return self.director if method == "director" else self.variants[method.removeprefix("director_")]

    def kep_layers(self, backbone: str) -> int:
        """Number of kernel-eigenpair layers, the last ones, of a backbone by its name."""
        number = backbone.removeprefix("kep_svgp_")
        return 0 if backbone == "softmax" else self.model.depth if number == "all" else int(number)

    def model_of(self, backbone: str) -> dict[str, Any]:
        """Settings of the backbone's model, see `director.recipes.train_backbone`."""
        kep = {f"kep_{key}": getattr(self.kep_svgp, key) for key in ("variant", "rank", "multiplier")}
        layers = self.kep_layers(backbone)
        return self.model.model_dump(exclude={"kind"}) | ({"kep_layers": layers, **kep} if layers else {})

    def samples_of(self, method: str) -> list[int] | None:
        """Numbers of samples that a stochastic method's rows are made with; None for the others."""
        is_variant = method.startswith("director_") and method != "director_temperature"
        source = self.director_of(method) if is_variant else getattr(self, method, None)
        samples = getattr(source, "samples", None)
        return samples

    @property
    def suites(self) -> dict[str, str]:
        """Suite of predictions -> data set it is made on, test suites only."""
        own = {"test": self.data.name, "corrupted": self.data.corrupted, "shifted": self.data.shifted}
        foreign = {f"ood-{name}": name for name in self.data.out_of_distribution}
        return {suite: name for suite, name in own.items() if name} | foreign


class Compute(Schema):
    """The machine: changes how fast a run is, and recorded with it, but never a reason to run it again."""

    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: CUDA where there is a GPU, else the CPU")
    compile: bool = Field(False, description="compile the model with torch.compile; worth it for hours of training")
    threads: Positive = Field(1, description="CPU threads of a training or prediction job")


class Configuration(Schema):
    """config/config.yaml: which experiments enter the tables, and on what they run."""

    experiments: list[str] = Field(min_length=1, description="names of files in config/experiments, without .yaml")
    compute: Compute = Field(Compute(), description="the machine")


def _merged(base: Any, part: Any) -> Any:
    """`base` with the keys that `part` names replaced, table by table."""
    if not (isinstance(base, Mapping) and isinstance(part, Mapping)):
        return part
    return {**base, **{key: _merged(base.get(key), value) for key, value in part.items()}}

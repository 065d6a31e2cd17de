"""Sections of an experiment that say how something is trained: the loop, attention, the student, and the machine."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from director.schema import Positive, Rate, Schema

Samples = Annotated[list[Positive], Field(min_length=1), AfterValidator(lambda numbers: sorted(set(numbers)))]
Selection = Literal["val_accuracy", "val_mcc", "val_nll", "last"]


class Training(Schema):
    """One plain loop: Adam with L2, warm-up, cosine, an epoch chosen by validation."""

    epochs: Positive = Field(300, description="passes over the training examples; paper: 300")
    batch_size: Positive = Field(128, description="examples per step; paper: 128")
    learning_rate: float = Field(1e-3, gt=0, description="peak of the schedule; paper: 1e-3")
    final_learning_rate: float = Field(1e-5, ge=0, description="end of the cosine; paper: 1e-5")
    warmup_epochs: float = Field(5, ge=0, description="epochs of linear warm-up; paper: 5")
    weight_decay: float = Field(5e-5, ge=0, description="L2 coefficient inside Adam; paper: 5e-5")
    gradient_clip: float | None = Field(1.0, gt=0, description="largest norm of the gradient; null for none")
    selection: Selection = Field(
        "val_accuracy", description="validation number of the best epoch, or last: no epoch is chosen"
    )

    patience: Positive | None = Field(
        None, description="epochs without a better one after which the training stops; null: it never does"
    )

    @model_validator(mode="after")
    def warm_up_ends(self) -> "Training":
        if self.warmup_epochs >= self.epochs:
            raise ValueError(f"warmup_epochs {self.warmup_epochs} does not end before epochs {self.epochs}")
        return self


class McDropout(Schema):
    """Monte Carlo dropout (Gal and Ghahramani, ICML 2016)."""

    samples: Samples = Field([10], description="stochastic passes per input, one row of the table for each; paper: 10")


class KepSvgp(Schema):
    """Kernel-eigenpair attention (Chen et al., ICML 2024), for backbones kep_svgp_* and the row `kep_svgp`."""

    variant: Literal["concat", "sum"] = Field("concat", description="how left and right singular features are combined")
    rank: Positive = Field(10, description="singular features per head; paper: 10")
    multiplier: Positive = Field(10, description="rank x multiplier tokens carry the projections; paper: 10")
    eta_ksvd: float = Field(10.0, ge=0, description="weight of the KSVD loss; paper: 10")
    eta_kl: float = Field(1.0, ge=0, description="weight of the KL divergence; paper: 1")
    training: Training | None = Field(None, description="training of backbones kep_svgp_*; null: as the softmax ones")
    samples: Samples = Field([1, 10], description="posterior samples per input, one row for each; paper: 10")
    annealing: ClassVar[float] = 0.0  # its weights are the same from the first step to the last

    def layer(self) -> dict[str, Any]:
        """Keywords of the layer, see `director.models.attention.KernelEigenpairAttention`."""
        return self.model_dump(include={"variant", "rank", "multiplier"})

    def penalties(self) -> dict[str, float]:
        """Weights of what the layers add to the loss, by the names that they give it."""
        return {"ksvd": self.eta_ksvd, "kl": self.eta_kl}

    def fault_with_texts(self) -> str | None:
        """Key, value and remedy of what cannot read texts; None if it can."""
        return None if self.variant == "sum" else f"variant {self.variant}: texts differ in length; set it to sum"


class Sgpa(Schema):
    """Sparse Gaussian process attention (Chen and Li, ICLR 2023), for backbones sgpa_* and the row `sgpa`."""

    kernel: Literal["ard", "exponential"] = Field("ard", description="paper: ard (images), exponential (texts)")
    inducing: Positive = Field(16, description="inducing inputs per head; paper: 16 (images), 5 (texts)")
    eta_kl: float = Field(1.0, ge=0, description="weight of the KL divergence, once it has risen; paper: 1")
    annealing: float = Field(
        0.5, ge=0, le=1, description="share of the training in which that weight rises from 0, linearly; paper: 0.5"
    )
    training: Training | None = Field(None, description="training of backbones sgpa_*; null: as the softmax ones")
    samples: Samples = Field([1, 10], description="posterior samples per input, one row for each; paper: 10")

    def layer(self) -> dict[str, Any]:
        """Keywords of the layer, see `director.models.attention.SparseGaussianProcessAttention`."""
        return self.model_dump(include={"kernel", "inducing"})

    def penalties(self) -> dict[str, float]:
        """Weights of what the layers add to the loss, by the names that they give it."""
        return {"kl": self.eta_kl}

    def fault_with_texts(self) -> None:
        """None: it reads texts."""


class Kernel(Schema):
    """The transition kernel shared by all steps (docs/method.md, "Symbols and names")."""

    mlp_ratio: float = Field(1.0, gt=0, description="hidden width of its MLP over the width of the stream; paper: 1")
    mlp_first: bool = Field(False, description="MLP before attention; false: the order of a DiT block")
    dropout: Rate = Field(0.1, description="dropout rate in the MLP and the two heads; authors: 0.1 in the heads")


class Losses(Schema):
    """loss = path_weight L1 + task_weight L2 + logit_weight L3 (docs/method.md, "One training step")."""

    path: Literal["kl", "mse", "none"] = Field("kl", description="L1, along the teacher's path; mse: the authors' code")
    path_weight: float = Field(1.0, ge=0, description="weight of L1")
    task_weight: float = Field(1.0, ge=0, description="weight of L2, the cross-entropy of a free roll-out")
    logit_weight: float = Field(
        0.0, ge=0, description="weight of L3, KL from the teacher's prediction to the roll-out's: plain distillation"
    )
    std_weight: float = Field(0.0, ge=0, description="within mse: weight of the standard deviations' part")
    variance_floor: float = Field(1e-4, gt=0, description="added to the teacher's variances before the logarithm of kl")
    softmax_variance: Literal["attention_moments", "dropout_moments", "zero"] = Field(
        "attention_moments",
        description='variance of a softmax teacher\'s step (docs/method.md, "Where attention cuts the path")',
    )

    @model_validator(mode="after")
    def something_to_learn(self) -> "Losses":
        if (self.path == "none" or self.path_weight == 0) and self.task_weight == self.logit_weight == 0:
            raise ValueError("path none, task_weight 0 and logit_weight 0 leave nothing to learn; switch one on")
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


class Student(Schema):
    """The method: row `director` on the backbone that is the teacher, and `director_temperature`."""

    kernel: Kernel = Field(Kernel(), description="the student's kernel")
    losses: Losses = Field(Losses(), description="what it learns from")
    training: Training = Field(Training(epochs=100), description="its training; paper: 100 epochs")
    trajectory: TrajectorySource = Field(TrajectorySource(), description="the teacher's path in training")
    noise: bool = Field(True, description="draw the noise of each step; false: each step takes its mean, always")
    freeze: list[Literal["embedding", "readout"]] = Field(
        [], description="parts copied from the teacher that are not trained further"
    )
    samples: Samples = Field([1, 10], description="roll-outs per input, one row of the table for each; paper: 1 and 10")
    selection_samples: Positive = Field(4, description="roll-outs per validation input that select the epoch")

    @model_validator(mode="after")
    def roll_outs_differ(self) -> "Student":
        if not self.noise and (self.samples != [1] or self.selection_samples != 1):
            raise ValueError("noise false makes all roll-outs the same; set samples to [1] and selection_samples to 1")
        return self


class Compute(Schema):
    """The machine: changes how fast a run is, and recorded with it, but never a reason to run it again."""

    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: CUDA where there is a GPU, else the CPU")
    compile: bool = Field(False, description="compile the model with torch.compile; worth it for hours of training")
    threads: Positive = Field(1, description="CPU threads of a training or prediction job")

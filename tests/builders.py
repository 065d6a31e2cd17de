"""What the tests of training and prediction share: tiny data sets, small settings, and jobs that train on them."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel

from director.data.dataset import Dataset
from director.data.examples import Augmentation, Normalisation
from director.data.splits import write_split
from director.data.texts import Texts
from director.data.tokenizer import load_tokenizer, train_tokenizer
from director.models.student import StudentNetwork
from director.models.transformers import ImageTransformer
from director.path.residual import path_of, student_of
from director.settings.model import ImageModel, TextModel
from director.settings.training import Compute, Kernel, Losses, Student, Training
from director.training.cache_trajectory import cache_trajectory
from director.training.job import TrainingJob
from director.training.train_backbone import train_backbone
from director.training.train_student import train_student

COUNT = 40  # examples of a data set
PARTS = {"train": np.arange(24), "validation": np.arange(24, 32), "test": np.arange(32, 40)}
TRAINING = Training(
    epochs=3,
    batch_size=8,
    learning_rate=1e-2,
    final_learning_rate=1e-4,
    warmup_epochs=1,
    weight_decay=0.0,
    gradient_clip=1.0,
    selection="val_nll",
)
IMAGE_MODEL = ImageModel(image_size=4, channels=1, patch=2, width=16, depth=2, heads=2, mlp_width=16, classes=2)
TEXT_MODEL = TextModel(kind="text", vocabulary=60, max_length=6, width=16, depth=2, heads=2, mlp_width=16, classes=2)
KERNEL = Kernel(mlp_ratio=1.0, mlp_first=False, dropout=0.0)
LOSSES = Losses(path="kl", path_weight=1.0, task_weight=1.0, variance_floor=1e-4)
STUDENT = Student(kernel=KERNEL, losses=LOSSES, training=TRAINING, selection_samples=2)
NORMALISATION = Normalisation(scale=255.0, mean=[0.5], std=[0.3])
AUGMENTATION = Augmentation(padding=1, flip=True)
CPU = Compute(device="cpu")
CHECKPOINT_SIZES = {  # of a tiny checkpoint of transformers
    "hidden_size": 12,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 8,
    "vocab_size": 60,
    "max_position_embeddings": 16,
}
OF_TEXTS = {"normalisation": None, "augmentation": None}  # changes that make a job one of texts


def kep_attention(variant: str = "concat") -> dict[str, Any]:
    """Kernel-eigenpair attention in the last layer."""
    return {"kind": "kep_svgp", "layers": 1, "variant": variant, "rank": 2, "multiplier": 2}


def sgpa_attention(kernel: str = "ard") -> dict[str, Any]:
    """Sparse Gaussian process attention in the last layer."""
    return {"kind": "sgpa", "layers": 1, "kernel": kernel, "inducing": 3}


def changed(settings: BaseModel, **changes: Any) -> Any:
    """The settings with other values, checked again; a mapping changes single keys of a section."""
    values = {name: getattr(settings, name) for name in type(settings).model_fields}
    for name, value in changes.items():
        section = values.get(name)
        values[name] = (
            changed(section, **value) if isinstance(section, BaseModel) and isinstance(value, dict) else value
        )
    return type(settings)(**values)


def bright_and_dark(folder: Path) -> Path:
    """Write the data set `bright`, images of two classes, and a split of it; gives the folder."""
    rng = np.random.default_rng(0)
    labels = np.arange(COUNT) % 2
    shape = (COUNT, 4, 4, 1)
    images = np.clip(rng.normal(90 + 60 * labels[:, None, None, None], 30, shape), 0, 255).astype(np.uint8)
    Dataset.clean("bright", images, labels).save(folder / "data")
    write_split(folder / "split.npz", PARTS)
    return folder


def sentences() -> list[str]:
    """Sentences of 2 to 8 words, "is ..." or "are ..." in turn; those that test have a word of their own, zebra."""
    rng = np.random.default_rng(0)
    made = []
    for row in range(COUNT):
        words = rng.choice(["a", "bird", "key", "sings", "near"], rng.integers(1, 8)).tolist()
        made.append(" ".join(["is" if row % 2 else "are", *words, *["zebra"] * (row in PARTS["test"])]))
    return made


def words(folder: Path, texts: list[str] | None = None, labels: np.ndarray | None = None) -> Path:
    """Write the data set `words` of the sentences, or of other texts, and a split of it; gives the folder."""
    labels = np.arange(COUNT) % 2 if labels is None else labels
    Dataset.clean("words", Texts.of(texts or sentences()), labels).save(folder / "data")
    write_split(folder / "split.npz", PARTS)
    return folder


def text_checkpoint(folder: Path, network: Any) -> Path:
    """Write a checkpoint of transformers, with a tokenizer made of the sentences; gives the folder."""
    import transformers

    tokenizer = load_tokenizer(train_tokenizer(sentences(), 60))
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")
    fast.save_pretrained(folder)
    network.save_pretrained(folder)
    return folder


def bert_checkpoint(folder: Path, kind: type | None = None) -> Path:
    """Write a BERT with fresh weights, without a head unless `kind` is a class that has one; gives the folder."""
    import transformers

    torch.manual_seed(0)
    return text_checkpoint(folder, (kind or transformers.BertModel)(transformers.BertConfig(**CHECKPOINT_SIZES)))


def random_model(seed: int = 0, **changes: Any) -> ImageTransformer:
    """A small classifier of 3 classes with fresh weights; changes: of its settings."""
    torch.manual_seed(seed)
    settings = changed(IMAGE_MODEL, width=8, mlp_width=8, classes=3).model_dump(exclude={"kind"})
    return ImageTransformer(**settings | changes)


def random_student(**changes: Any) -> StudentNetwork:
    """A student of it, away from its start, where every step is the identity and every variance the same."""
    made = student_of(path_of(random_model(**changes)), KERNEL)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in made.kernel.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return made


def random_images(count: int = 20, name: str = "grey", size: int = 4) -> Dataset:
    """Images of noise, labelled at random with 3 classes."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (count, size, size, 1), dtype=np.uint8)
    return Dataset.clean(name, images, rng.integers(0, 3, count))


def training_job(folder: Path, name: str, **changes: Any) -> TrainingJob:
    """A job on the data set in `folder` that writes into <folder>/<name>."""
    arguments = {
        "dataset_folder": folder / "data",
        "split_file": folder / "split.npz",
        "folder": folder / name,
        "seed": 3,
        "normalisation": NORMALISATION,
        "augmentation": AUGMENTATION,
        "about": {"experiment": "test", "backbone": "softmax"},
        "compute": CPU,
    }
    return TrainingJob(**arguments | changes)


def trained_backbone(
    folder: Path,
    name: str = "backbone",
    *,
    model: ImageModel | TextModel = IMAGE_MODEL,
    training: Training = TRAINING,
    attention: dict[str, Any] | None = None,
    penalties: dict[str, float] | None = None,
    annealing: float = 0.0,
    **changes: Any,
) -> Path:
    """Train a backbone; gives the folder with its files. changes: of the job."""
    train_backbone(training_job(folder, name, **changes), model, training, attention, penalties, annealing)
    return folder / name


def trained_student(
    folder: Path,
    name: str = "director",
    *,
    student: Student = STUDENT,
    teacher: str = "backbone",
    cost_files: tuple[Path, ...] = (),
    cache_folders: list[Path] | tuple[Path, ...] = (),
    **changes: Any,
) -> Path:
    """Train a student of the backbone <folder>/<teacher>; gives the folder with its files.

    cost_files: of what it builds on beside its teacher. changes: of the job.
    """
    teacher_file = folder / teacher / "model.safetensors"
    costs = [folder / teacher / "cost.json", *cost_files]
    train_student(training_job(folder, name, **changes), student, teacher_file, costs, cache_folders)
    return folder / name


def cached_path(folder: Path, views: int = 1, teacher: str = "backbone", **changes: Any) -> list[Path]:
    """Capture the path of the backbone <folder>/<teacher>; gives the folder of each view, and <folder>/trajectory has
    its cost.json."""
    folders = [folder / "trajectory" / f"view-{view}" for view in range(views)]
    arguments = {
        "teacher_file": folder / teacher / "model.safetensors",
        "dataset_folder": folder / "data",
        "split_file": folder / "split.npz",
        "folders": folders,
        "cost_file": folder / "trajectory/cost.json",
        "seed": 3,
        "softmax_variance": "attention_moments",
        "dtype": "float32",
        "normalisation": NORMALISATION,
        "augmentation": AUGMENTATION,
        "compute": CPU,
    }
    cache_trajectory(**arguments | changes)
    return folders


def history(folder: Path) -> list[dict[str, float]]:
    """The rows of a training's history, as numbers."""
    with (folder / "history.csv").open() as file:
        return [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]

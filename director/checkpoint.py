"""A fine-tuned classifier in a folder and data in files, for `director distil`, `director predict` and MLflow.

A classifier is a checkpoint of timm or transformers with config.json and safetensors, which reads texts or images.
Texts are a table (CSV, TSV or Parquet) with a column of them; images a folder, labelled ones in a sub-folder per class.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from director.data.dataset import Dataset
from director.data.examples import ImageExamples, Normalisation, TextExamples
from director.data.images import decode_image
from director.data.texts import Texts
from director.device import resolve_device, to_device
from director.errors import InputError, listed
from director.files import read_json, reading, replacing, write_json
from director.foreign import LABELS, TABLES, read_table
from director.models.pretrained import CONFIG, PretrainedClassifier, checkpoint_folder, pretrained_classifier
from director.numbers.predictions import Predictions, expected_entropy, mutual_information, predictive_entropy
from director.reconfigure import TRAINING, Director
from director.settings.model import PretrainedModel
from director.settings.training import Training
from director.training.predict import logits_of

DESCRIPTION = "classifier.json"  # beside what `Director.save` writes: of which classifier the student is
PICTURES = (".bmp", ".jpeg", ".jpg", ".png", ".webp")
MAX_LENGTH = 128  # tokens of a text
REMEDY = "check the path, or save it anew"


@dataclass(frozen=True)
class Classifier:
    """A classifier with all that its inputs need. classes: names, in the order of its logits."""

    model: PretrainedClassifier
    source: str
    classes: Sequence[str]
    reads: Literal["texts", "images"]
    max_length: int

    @classmethod
    def load(cls, source: str, *, max_length: int = MAX_LENGTH, device: str = "auto") -> "Classifier":
        """The classifier of a folder, a name on the hub or package:<module>/<folder>, unchanged.

        max_length: tokens of a text that are read. Raises InputError for what is none, or lacks a head of its own.
        """
        config = read_json(checkpoint_folder(source) / CONFIG)
        is_timm = "architecture" in config
        reads = "images" if is_timm or "patch_size" in config else "texts"
        classes = _class_names(config, is_timm)
        settings = PretrainedModel(
            kind="pretrained",
            source=source,
            fine_tune=False,
            classes=len(classes),
            dropout=0.0,
            max_length=max_length if reads == "texts" else None,
        )
        model, _ = pretrained_classifier(settings, reads, normalised=False)
        return cls(model.eval().to(resolve_device(device)), source, classes, reads, max_length)

    def read(
        self, path: str | Path, *, text: str = "text", label: str | None = None, shuffle: bool = False
    ) -> "Inputs":
        """Inputs from a table of texts, or a folder of images.

        text, label: columns of a table; label None is the one called label, labels or y, if there is one. shuffle: in
        another order, always the same, as training needs of a file that is sorted by class.
        """
        if self.reads == "texts":
            source: Texts | list[Path]
            source, labels = _texts(path, text, label, self.classes)
        else:
            source, labels = _pictures(path, self.classes)
        order = np.random.default_rng(0).permutation(len(source)) if shuffle else np.arange(len(source))
        return Inputs(self, source, labels, order)

    def inputs(self, values: Sequence[str]) -> "Inputs":
        """Inputs without labels from texts, or from paths of images."""
        source = Texts.of(values) if self.reads == "texts" else list(map(Path, values))
        return Inputs(self, source, None, np.arange(len(values)))


@dataclass(frozen=True)
class Inputs:
    """Batches (inputs, labels), or inputs alone where there are no labels, as the classifier's network takes them.

    source: texts, or files of images, which are opened when their batch comes. labels: int64 [N] or None. order: rows.
    """

    classifier: Classifier
    source: Texts | list[Path]
    labels: np.ndarray | None
    order: np.ndarray
    batch_size: int = 32

    def __len__(self) -> int:
        return len(self.order)

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, len(self), self.batch_size):
            rows = self.order[start : start + self.batch_size]
            inputs = self._batch(rows)
            yield inputs if self.labels is None else (inputs, self.labels[rows])

    def _batch(self, rows: np.ndarray) -> Any:
        model = self.classifier.model
        settings = model.settings
        examples: ImageExamples | TextExamples
        if isinstance(self.source, Texts):
            dataset = Dataset.clean("texts", self.source[rows], None)
            examples = TextExamples(dataset, settings["tokenizer"], settings["max_length"])
        else:
            pixels = np.stack([_resized(self.source[row], settings) for row in rows])
            examples = ImageExamples(Dataset.clean("images", pixels, None), Normalisation(**settings["normalisation"]))
        inputs, _ = examples.batch(np.arange(len(rows)))
        return model.prepare(to_device(inputs, next(model.parameters()).device))


def distil(
    classifier: Classifier,
    train: Inputs,
    validation: Inputs,
    folder: str | Path,
    *,
    last: int | None = None,
    states_every: int = 1,
    samples: int = 10,
    seed: int = 0,
    training: Training = TRAINING,
) -> dict[str, Predictions]:
    """Make a student of a classifier and save it; the validation predictions of the `classifier` and the `student`.

    Options: of `director.reconfigure.Director.from_model` and `fit`. Raises InputError for data without labels.
    """
    for name, data in (("training", train), ("validation", validation)):
        if data.labels is None:
            raise InputError(f"the {name} data have no labels; {_missing_labels(classifier)}")
    student = Director.from_model(
        classifier.model.network, last=last, states_every=states_every, samples=samples, seed=seed
    )
    student.to(next(classifier.model.parameters()).device).fit(train, validation, training=training)
    student.save(folder)
    about = {"source": _absolute(classifier.source), "max_length": classifier.max_length}
    write_json(Path(folder, DESCRIPTION), about)
    with torch.no_grad():
        own = torch.cat([logits_of(classifier.model.network, inputs).float().cpu() for inputs, _ in validation])
    return {
        "classifier": Predictions(own.numpy(), validation.labels),
        "student": student.predictions(validation),
    }


def load_student(folder: str | Path, source: str | None = None, device: str = "auto") -> tuple[Director, Classifier]:
    """A student that `distil` saved, around its classifier. source: where that lies now, if it was moved."""
    path = Path(folder, DESCRIPTION)
    content = read_json(path)
    with reading(path, "the description of a student's classifier", "give a folder that `director distil` wrote"):
        known, max_length = str(content["source"]), int(content["max_length"])
    classifier = Classifier.load(source or known, max_length=max_length, device=device)
    student = Director.load(folder, classifier.model.network)
    return student.to(next(classifier.model.parameters()).device), classifier


def prediction_columns(predictions: Predictions, classes: Sequence[str]) -> dict[str, np.ndarray]:
    """Columns of a table: p_<class> of each class, uncertainties in nats, and the label where there is one."""
    probabilities = predictions.pool().probabilities
    columns = {f"p_{name}": probabilities[:, number] for number, name in enumerate(classes)}
    measures = (predictive_entropy, expected_entropy, mutual_information)
    columns |= {measure.__name__: measure(predictions) for measure in measures}
    return columns if predictions.labels is None else columns | {"label": np.array(classes)[predictions.labels]}


def writable_suffix(path: str | Path) -> str:
    """The suffix of a file of predictions that can be written; raises InputError for another."""
    suffix = Path(path).suffix.lower()
    if suffix not in (".npz", *TABLES):
        raise InputError(f"{path}: predictions are written as .npz, {', '.join(TABLES)}; give one of these suffixes")
    return suffix


def write_predictions(path: str | Path, predictions: Predictions, classes: Sequence[str]) -> None:
    """Write predictions as a table (.csv, .tsv, .parquet), or with every roll-out (.npz)."""
    suffix = writable_suffix(path)
    if suffix == ".npz":
        predictions.save(path)
        return
    import pyarrow
    from pyarrow import csv, parquet

    table = pyarrow.table(prediction_columns(predictions, classes))
    with replacing(path) as temporary:
        if suffix == ".parquet":
            parquet.write_table(table, temporary)
        else:
            csv.write_csv(table, temporary, csv.WriteOptions(delimiter="\t" if suffix == ".tsv" else ","))


def _class_names(config: Mapping[str, Any], is_timm: bool) -> list[str]:
    if is_timm:
        names = config.get("label_names") or range(config.get("num_classes", 0))
    else:
        labels = {int(number): name for number, name in config.get("id2label", {0: "0", 1: "1"}).items()}
        names = [labels[number] for number in sorted(labels)]
    return [str(name) for name in names]


def _texts(path: str | Path, text: str, label: str | None, classes: Sequence[str]) -> tuple[Texts, np.ndarray | None]:
    if Path(path).suffix.lower() not in TABLES:
        raise InputError(f"{path}: the classifier reads texts; give a table, one of {', '.join(TABLES)}")
    columns = read_table(path)
    label = label or next((name for name in LABELS if name in columns), None)
    for option, name in (("text", text), ("label", label)):
        if name is not None and name not in columns:
            raise InputError(f"{path}: no column {name} among {listed(list(columns))}; name one with --{option}")
    texts = columns[text].to_pylist()
    for row, value in enumerate(texts):
        if not isinstance(value, str):
            raise InputError(f"{path}: row {row} of column {text} is {value!r}, not a text; name another with --text")
    labels = None if label is None else _numbers(path, columns[label].to_pylist(), classes)
    return Texts.of(texts), labels


def _numbers(path: str | Path, values: Sequence[Any], classes: Sequence[str]) -> np.ndarray:
    """Class numbers of labels, each a class's name or its number."""
    known = {name: number for number, name in enumerate(classes)} | {number: number for number in range(len(classes))}
    for row, value in enumerate(values):
        if value not in known or isinstance(value, float):
            raise InputError(
                f"{path}: label {value!r} in row {row} is no class of {listed(list(classes))}, nor its number"
            )
    return np.array([known[value] for value in values], np.int64)


def _pictures(path: str | Path, classes: Sequence[str]) -> tuple[list[Path], np.ndarray | None]:
    folder = Path(path)
    if not folder.is_dir():
        raise InputError(f"{path}: the classifier reads images; give a folder of them")
    files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in PICTURES)
    if not files:
        raise InputError(f"{path}: no image in it; give a folder with files {', '.join(PICTURES)}")
    if all(file.parent == folder for file in files):
        return files, None
    names = [file.relative_to(folder).parts[0] for file in files]
    kinds = sorted({*names})
    if not {*kinds} <= {*classes} and len(kinds) == len(classes):  # names that the checkpoint does not have
        classes = kinds
    return files, _numbers(path, names, classes)


def _resized(path: Path, settings: Mapping[str, Any]) -> np.ndarray:
    """uint8 [size, size, 3]: as `director.models.pretrained.Prepare` makes a data set's images."""
    from PIL import Image

    size = (settings["image_size"],) * 2
    image = Image.fromarray(decode_image(path, str(path), REMEDY))
    return np.asarray(image.resize(size, Image.Resampling[settings["interpolation"].upper()]))


def _missing_labels(classifier: Classifier) -> str:
    if classifier.reads == "texts":
        return f"call their column {LABELS[0]}, or name it with --label"
    return "put the images of each class into a sub-folder of its name"


def _absolute(source: str) -> str:
    return str(Path(source).resolve()) if Path(source).is_dir() else source

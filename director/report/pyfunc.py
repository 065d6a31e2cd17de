"""A student as a model of MLflow: class probabilities and uncertainty from `mlflow.pyfunc.load_model`.

MLflow keeps this file as the model's code, and the student and its classifier as files; nothing is pickled.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlflow
import pandas as pd
from mlflow.pyfunc import PythonModel

from director.checkpoint import load_student, prediction_columns
from director.models.pretrained import checkpoint_folder


class StudentModel(PythonModel):
    """Predicts with what `director distil` wrote."""

    def load_context(self, context: Any) -> None:
        self.student, self.classifier = load_student(context.artifacts["student"], context.artifacts["classifier"])

    def predict(self, context: Any, model_input: pd.DataFrame, params: Mapping[str, Any] | None = None) -> pd.DataFrame:
        """A row for each: p_<class>, predictive_entropy, expected_entropy and mutual_information, in nats.

        model_input: a column `text`, or, of a classifier that reads images, a column `path` of files. params:
        `samples` and `seed` of the roll-outs.
        """
        column = "text" if self.classifier.reads == "texts" else "path"
        data = self.classifier.inputs(model_input[column].tolist())
        options = {name: value for name, value in (params or {}).items() if name in ("samples", "seed")}
        found = self.student.predictions(data, **options, labelled=False)
        return pd.DataFrame(prediction_columns(found, self.classifier.classes), index=model_input.index)


def save_student(path: str | Path, student: str | Path) -> None:
    """Write the student of a folder, and a copy of its classifier, as a model of MLflow into the new folder `path`."""
    _, classifier = load_student(student, device="cpu")
    mlflow.pyfunc.save_model(
        path,
        python_model=__file__,
        artifacts={"student": str(student), "classifier": str(checkpoint_folder(classifier.source))},
        pip_requirements=["director"],
    )


mlflow.models.set_model(StudentModel())

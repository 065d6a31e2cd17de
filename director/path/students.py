"""Students from their files, also those that are built around layers of their teacher."""

from pathlib import Path
from typing import Any

import torch

from director.errors import InputError
from director.files import file_digest
from director.models.student import StudentNetwork
from director.models.transformers import BACKBONES
from director.models.weights import load_model, read_saved, rebuilt
from director.path.residual import path_of, student_of
from director.settings.training import Kernel


def load_student(
    path: str | Path, device: str | torch.device, teacher_file: str | Path
) -> tuple[StudentNetwork, dict[str, Any]]:
    """Read a student from a file of `save_model`, in evaluation mode on `device`, and its `about`.

    teacher_file: weights of its teacher. A student of a pretrained model has tensors of its own only, and takes what
    stays as it is from there; any other student is whole without. Raises InputError if it is another teacher's, and
    for a file that holds no student.
    """
    saved = read_saved(path, device)
    if saved.kind != StudentNetwork.kind:
        raise InputError(
            f"{path}: a model of kind {saved.kind!r} has no path to roll out; give the weights of a student"
        )
    if saved.settings["backbone"]["kind"] in BACKBONES:
        return rebuilt(path, saved, lambda: StudentNetwork.from_settings(saved.settings), device), saved.about
    found, expected = file_digest(teacher_file), saved.about.get("teacher")
    if found != expected:
        raise InputError(
            f"{path}: a student of the teacher with digest {expected}, but {teacher_file} has {found}; give the file "
            "that it was distilled from, or train the student again"
        )
    teacher, _ = load_model(teacher_file, device)
    kernel = Kernel(**saved.settings["kernel"])
    return rebuilt(path, saved, lambda: student_of(path_of(teacher), kernel), device), saved.about

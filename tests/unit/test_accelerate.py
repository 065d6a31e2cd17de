"""Several processes that distil one student together, by accelerate, on this machine's CPU."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch.utils.data import DataLoader, TensorDataset

from director.errors import InputError
from director.reconfigure import Director
from director.settings.training import Kernel, Losses, Training

if os.environ.get("CI"):
    import accelerate  # `make accelerate`: there it has to be
else:
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed (make accelerate)")

COUNT = 48
SHORT = Training(epochs=2, batch_size=8, learning_rate=3e-3, warmup_epochs=1, selection="val_nll")
# nothing in it draws a number, so that two shares of a batch have the gradient of the batch
EXACT = {"kernel": Kernel(dropout=0)}, Losses(path="mse", task_weight=0)


def vit():
    torch.manual_seed(0)
    return VisionTransformer(img_size=8, patch_size=4, embed_dim=8, depth=4, num_heads=2, num_classes=3)


def images():
    inputs = torch.randn(COUNT, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    return inputs, (inputs.mean((1, 2, 3)) > 0).long()


def alone(processes=1, index=0, mixed="no"):
    """What one process of several sees of its accelerator, where it is the only one."""
    return SimpleNamespace(
        num_processes=processes,
        process_index=index,
        mixed_precision=mixed,
        device=torch.device("cpu"),
        gather=lambda tensor: tensor,
        reduce=lambda tensor, how: tensor,
        prepare_data_loader=lambda loader: loader,
    )


def loader(batch_size):
    return DataLoader(TensorDataset(*images()), batch_size=batch_size)


def fitted(batch_size, last=4, accelerator=None):
    options, losses = EXACT if last == 4 else ({}, None)
    student = Director.from_model(vit(), last=last, verbose=False, **options)
    return student.fit(loader(batch_size), images(), training=SHORT, losses=losses, accelerator=accelerator)


def own_part(out):
    """The program that each process runs; 4: the model runs along, 2: behind a frozen prefix."""
    accelerator, content = accelerate.Accelerator(cpu=True), {}
    for last in (4, 2):
        student = fitted(batch_size=4, last=last, accelerator=accelerator)
        content[last] = {"history": student.history, "weights": sums(student), "scale": student.noise_scale}
    names = {"model": vit(), "train": loader(8), "validation": images()}
    page = Path(__file__).parents[2] / "docs/your-own-model.md"
    exec(re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)[-1], names)
    Path(f"{out}.{accelerator.process_index}").write_text(json.dumps(content), encoding="utf-8")


def sums(student):
    return [parameter.detach().double().sum().item() for parameter in student.network.parameters()]


def test_two_processes_distil_one_student(tmp_path):
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*launch, __file__, str(tmp_path / "out")],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    first, second = (json.loads((tmp_path / f"out.{rank}").read_text()) for rank in (0, 1))
    assert first == second, "one student: the same weights, losses and scale in both"
    probabilities, _ = Director.load(tmp_path / "calibrated", vit()).predict(images())
    assert probabilities.shape == (COUNT, 3), "the student of the page"
    found, expected = first["4"], fitted(batch_size=8)
    assert found["weights"] == pytest.approx(sums(expected), rel=1e-4, abs=1e-6)
    for row, other in zip(found["history"], expected.history, strict=True):
        assert row == pytest.approx(other, rel=1e-4)


def test_processes_draw_different_noise():
    losses = [fitted(8, 2, alone(2, index)).history[-1]["train_loss"] for index in (0, 0, 1)]
    assert losses[0] == losses[1] != losses[2]


def test_what_processes_cannot_share_is_refused():
    student = Director.from_model(vit(), last=2, verbose=False)
    with pytest.raises(InputError, match=r"share a DataLoader; the training data are a tuple"):
        student.fit(images(), images(), training=SHORT, accelerator=alone(2))
    with pytest.raises(InputError, match=r"mixed precision 'fp16' is not supported; choose bf16 or no"):
        student.fit(loader(8), images(), training=SHORT, accelerator=alone(2, mixed="fp16"))
    other = alone(2)
    other.gather = lambda counts: torch.cat([counts, counts + 1])
    with pytest.raises(InputError, match=rf"the processes have \[{COUNT // 8}, {COUNT // 8 + 1}\] batches an epoch"):
        student.fit(loader(8), images(), training=SHORT, accelerator=other)


if __name__ == "__main__":
    own_part(sys.argv[1])

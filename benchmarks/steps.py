"""What a training step and a prediction of DIRECTOR cost, in the teacher's own: `python benchmarks/steps.py`.

The sizes are those of CIFAR-10 in the paper: ViT-7, width 384, 64 tokens. A step is loss, gradient and optimiser.
`--curves` measures over depth, tokens, samples and classes, too, one at a time.
"""

import argparse
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from timing import paired, peak_gigabytes, ratio
from torch import nn

from director.device import autocast, resolve_device
from director.models.transformers import ImageTransformer
from director.noise import BatchNoise
from director.path.residual import path_of, student_of
from director.path.trajectory import capture
from director.settings.training import Kernel, Losses

PAPER = {"depth": 7, "image_size": 32, "samples": 10, "classes": 10}
CURVES = {"depth": (2, 12, 24), "image_size": (16, 64), "samples": (1, 30), "classes": (1000,)}


def step_of(
    model: nn.Module, loss: Callable[[], torch.Tensor], device: torch.device, precision: str
) -> Callable[[], None]:
    """One step of Adam on the loss of a model."""
    model.train()
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimiser = torch.optim.Adam(weights, fused=True)

    def step() -> None:
        optimiser.zero_grad()
        with autocast(device, precision):
            value = loss()
        value.backward()
        optimiser.step()

    return step


def measure(
    depth: int, image_size: int, samples: int, classes: int, *, batch: int, device: str, precision: str, rounds: int
) -> None:
    """Print the ratios of one size."""
    device = resolve_device(device)
    torch.manual_seed(0)
    sizes = {"channels": 3, "patch": 4, "width": 384, "heads": 12, "mlp_width": 384}
    teacher = ImageTransformer(image_size=image_size, depth=depth, classes=classes, **sizes).to(device)
    images = torch.randn(batch, 3, image_size, image_size, device=device)
    labels = torch.randint(classes, (batch,), device=device)
    path, losses = path_of(teacher), Losses()
    cached = capture(path, images)
    student = student_of(path, Kernel())
    noise = BatchNoise(torch.Generator(device).manual_seed(0))

    def distilled(live: bool) -> torch.Tensor:
        trajectory = capture(path, images) if live else cached
        path_loss = student.path_loss(trajectory.states, trajectory.variances, trajectory.mask, losses)
        return path_loss + student.task_loss(images, labels, noise)

    losses_of = {
        "teacher": (teacher, lambda: F.cross_entropy(teacher(images), labels)),
        "live": (student, lambda: distilled(live=True)),
        "cached": (student, lambda: distilled(live=False)),
    }
    steps = {name: step_of(model, loss, device, precision) for name, (model, loss) in losses_of.items()}
    seconds = paired(steps, rounds)
    tokens = (image_size // sizes["patch"]) ** 2
    print(f"depth {depth}, {tokens} tokens, {classes} classes, {samples} samples:")
    for name in ("live", "cached"):
        print(f"  training step of a student, {name}, in steps of its teacher: {ratio(seconds, name, 'teacher')}")
    teacher.eval()
    student.eval()
    with torch.no_grad(), autocast(device, precision):
        passes = {"forward": lambda: teacher(images), "roll-outs": lambda: student(images, noise, samples=samples)}
        seconds = paired(passes, rounds)
    print(f"  {samples} roll-outs in forward passes of the teacher: {ratio(seconds, 'roll-outs', 'forward')}")


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--curves", action="store_true")
    options = parser.parse_args(words)
    torch.set_num_threads(options.threads)
    how = {"batch": options.batch, "device": options.device, "precision": options.precision, "rounds": options.rounds}
    print(f"batch {options.batch}, {options.device}, {options.precision}, {options.threads} threads;")
    print("median ratio [smallest, largest] over the rounds")
    measure(**PAPER, **how)
    if options.curves:
        for name, values in CURVES.items():
            for value in values:
                measure(**PAPER | {name: value}, **how)
    print(f"peak of the process: {peak_gigabytes():.2f} GB")


if __name__ == "__main__":
    main()

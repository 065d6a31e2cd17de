"""What KEP-SVGP costs, in the published code's own time: `KEP_SVGP_REPO=path python benchmarks/kep_svgp.py`.

The published code is a checkout of yingyichen-cyy/KEP-SVGP, whose CIFAR models run in turn with ours of the same
sizes: ViT-7, width 384, 12 heads, 64 tokens, with kernel-eigenpair attention in none, the last one and all layers.
A step is loss, gradient and optimiser; its memory is what autograd keeps for the backward pass. A prediction is ten
samples of every image.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from steps import step_of
from timing import paired, peak_gigabytes, ratio
from torch import Tensor, nn

from director.models.transformers import ImageTransformer
from director.noise import BatchNoise

SIZES = {"image_size": 32, "channels": 3, "patch": 4, "width": 384, "depth": 7, "heads": 12, "mlp_width": 384}
CLASSES, DROPOUT, SAMPLES, RANK, MULTIPLIER, ETA_KSVD, ETA_KL = 10, 0.1, 10, 10, 10, 0.1, 1.0


def published_code() -> tuple[Callable[..., nn.Module], Callable[..., tuple[Tensor, ...]]]:
    """The model and the loss of the checkout that KEP_SVGP_REPO names."""
    folder = Path(os.environ.get("KEP_SVGP_REPO", "")) / "CIFAR"
    if not (folder / "model" / "vit_cifar.py").is_file():
        sys.exit(f"no model/vit_cifar.py in {folder}: set KEP_SVGP_REPO to a checkout of yingyichen-cyy/KEP-SVGP")
    sys.path.insert(0, str(folder))
    from model.vit_cifar import vit_cifar
    from train import compute_loss

    return vit_cifar, compute_loss


def kept_for_backward(loss: Callable[[], Tensor]) -> int:
    """Bytes that autograd keeps between a forward pass and its backward pass; each storage counts once."""
    storages: dict[int, int] = {}
    kept = []  # alive until counted, or the next tensor could take the address of one that is gone

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss()
    return sum(storages.values())


def measure(layers: int, variant: str, batch: int, rounds: int) -> None:
    """Print the ratios for kernel-eigenpair attention in the last `layers` layers."""
    vit_cifar, compute_loss = published_code()
    torch.manual_seed(0)
    arguments = SimpleNamespace(depth=7, hdim=384, num_heads=12, concate=variant == "concat")
    theirs = vit_cifar(arguments, "kep_svgp" if layers else "softmax", CLASSES, layers, RANK, MULTIPLIER)
    attention = {"kind": "kep_svgp", "layers": layers, "variant": variant, "rank": RANK, "multiplier": MULTIPLIER}
    ours = ImageTransformer(**SIZES, classes=CLASSES, dropout=DROPOUT, attention=attention if layers else None)
    images, labels = torch.randn(batch, 3, 32, 32), torch.randint(CLASSES, (batch,))
    noise = BatchNoise(torch.Generator().manual_seed(0))

    def their_loss() -> Tensor:
        if not layers:
            return F.cross_entropy(theirs(images), labels)
        logits, scores, roots, divergences = theirs(images)
        return compute_loss(F.cross_entropy, logits, labels, scores, roots, divergences, ETA_KSVD, ETA_KL)[0]

    def our_loss() -> Tensor:
        logits, penalties = ours.forward_with_penalties(images, noise)
        loss = F.cross_entropy(logits, labels)
        return loss + ETA_KSVD * penalties["ksvd"] + ETA_KL * penalties["kl"] if layers else loss

    steps = {
        "theirs": step_of(theirs, their_loss, torch.device("cpu"), "float32"),
        "ours": step_of(ours, our_loss, torch.device("cpu"), "float32"),
    }
    name = f"KEP-{layers}/7, {variant}" if layers else "softmax"
    print(f"{name}: a training step {ratio(paired(steps, rounds), 'ours', 'theirs')}", end="")
    print(f", its memory {kept_for_backward(our_loss) / kept_for_backward(their_loss):.2f}")
    if not layers:
        return
    ours.eval()
    theirs.eval()
    with torch.no_grad():
        predictions = {
            "theirs": lambda: [theirs(images) for _ in range(SAMPLES)],
            "ours": lambda: ours(images, noise, samples=SAMPLES),
        }
        print(f"  {SAMPLES} samples {ratio(paired(predictions, max(3, rounds // 3)), 'ours', 'theirs')}")


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args(words)
    torch.set_num_threads(options.threads)
    print(f"ours / theirs, batch {options.batch}, float32, {options.threads} threads;")
    print("median ratio [smallest, largest] over the rounds")
    for layers, variant in ((0, ""), (1, "concat"), (1, "sum"), (7, "concat"), (7, "sum")):
        measure(layers, variant, options.batch, options.rounds)
    print(f"peak of the process: {peak_gigabytes():.2f} GB")


if __name__ == "__main__":
    main()

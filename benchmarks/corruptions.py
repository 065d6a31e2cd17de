"""What corrupting images costs, in the time of the registry's packages: `python benchmarks/corruptions.py`.

The peers are called as they are made, image by image: imagecorruptions-imaug, which has all 19 kinds (its severities
are those of ImageNet-C, whose blurs reach further than ours), and albumentations, for the kinds to which it can be
given our parameters. Neither draws the published CIFAR-10-C. Install both where the benchmark runs, in an environment
of their own (docs/performance.md).
"""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.resources import files

import numpy as np
from timing import paired, peak_gigabytes, ratio

from director.data.corruptions import CORRUPTIONS, corrupt

os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"  # it would ask the network for a newer release
try:
    import albumentations
    import cv2
    import imagecorruptions
except ImportError as missing:
    sys.exit(f"{missing}: see docs/performance.md for what this benchmark needs")

SEVERITY = 4


def albumentations_kinds() -> dict[str, albumentations.ImageOnlyTransform]:
    """The kinds of albumentations with the parameters of ours at `SEVERITY`."""
    parameters = {kind: values[SEVERITY - 1] for kind, (_, values) in CORRUPTIONS.items()}
    std, amount, sigma = (parameters[kind] for kind in ("gaussian_noise", "impulse_noise", "gaussian_blur"))
    glass_sigma, shift, iterations = parameters["glass_blur"]
    radius, alias = parameters["defocus_blur"]
    zoom, quality = float(parameters["zoom_blur"][-1]), parameters["jpeg_compression"]
    mean, deviation, liquid_sigma, threshold, strength, _ = parameters["spatter"]
    return {
        "gaussian_noise": albumentations.GaussNoise(std_range=(std, std), p=1),
        "impulse_noise": albumentations.SaltAndPepper(amount=(amount, amount), p=1),
        "gaussian_blur": albumentations.GaussianBlur(sigma_limit=(sigma, sigma), p=1),
        "glass_blur": albumentations.GlassBlur(glass_sigma, shift, iterations, mode="exact", p=1),
        "defocus_blur": albumentations.Defocus((radius, radius), (alias, alias), p=1),
        "zoom_blur": albumentations.ZoomBlur((zoom, zoom), (0.01, 0.01), p=1),
        "jpeg_compression": albumentations.ImageCompression(quality_range=(quality, quality), p=1),
        "spatter": albumentations.Spatter(
            (mean, mean), (deviation, deviation), (liquid_sigma,) * 2, (threshold,) * 2, (strength,) * 2, "mud", p=1
        ),
    }


def measure(kind: str, images: np.ndarray, transform: albumentations.ImageOnlyTransform | None, rounds: int) -> None:
    """Print the ratios for one kind."""
    photographs = files(imagecorruptions) / "frost"
    actions = {
        "ours": lambda: corrupt(images, kind, SEVERITY, frost=str(photographs)),
        "imagecorruptions": lambda: [
            imagecorruptions.corrupt(image, severity=SEVERITY, corruption_name=kind) for image in images
        ],
    }
    if transform:
        actions["albumentations"] = lambda: [transform(image=image) for image in images]
    seconds = paired(actions, rounds)
    print(f"{kind:18}", *(f"  {peer} {ratio(seconds, 'ours', peer)}" for peer in list(actions)[1:]))


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args(words)
    cv2.setNumThreads(1)
    images = np.random.default_rng(0).integers(0, 256, (options.images, 32, 32, 3), np.uint8)
    print(f"ours / theirs, {options.images} images, severity {SEVERITY}, one thread;")
    print("median ratio [smallest, largest] over the rounds")
    transforms = albumentations_kinds()
    for kind in CORRUPTIONS:
        measure(kind, images, transforms.get(kind), options.rounds)
    print(f"peak of the process: {peak_gigabytes():.2f} GB")


if __name__ == "__main__":
    main()

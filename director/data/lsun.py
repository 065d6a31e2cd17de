"""LSUN scenes at 32x32 pixels: out-of-distribution images for CIFAR-10, from a folder of the user's.

Source: Yu et al., "LSUN: Construction of a Large-scale Image Dataset using Deep Learning with Humans in the Loop",
arXiv 1506.03365 (docs/datasets.md).
"""

from pathlib import Path

import numpy as np

from director.data.dataset import Dataset, Description
from director.data.images import decode_image
from director.data.sources import first_of, from_folders, in_folder, named
from director.errors import InputError
from director.files import reading

AT_MOST = 10_000
SIDE = 32  # pixels
SUFFIXES = {".png", ".jpg", ".jpeg", ".webp"}


def fetch(made_from: dict[str, Path]) -> Dataset:
    """Images uint8 [N, 32, 32, 3], N up to 10,000: the first by file name, or of the array. No labels.

    Nothing is downloaded: LSUN is published as databases of full-size photographs, one of them for each scene.
    """
    remedy = in_folder("lsun", "images (*.png, *.jpg, *.webp)", "lsun.npz with `images` uint8 [N, H, W, 3]")
    page = "LSUN has no download of single images; its page is https://www.yf.io/p/lsun"
    return first_of("lsun", {f"{remedy}; {page}": lambda: from_folders("lsun", read_folder)})


def read_folder(folder: Path) -> Dataset | None:
    """The set from the array in `folder`, else from its images; None without either."""
    if (path := folder / "lsun.npz").is_file():
        return _dataset("array", _read_array(path))
    if not named(folder, "lsun"):
        return None
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)[:AT_MOST]
    images = [_resized(str(path), decode_image(path, str(path), "save it anew or leave it out")) for path in paths]
    return _dataset("image files", np.stack(images)) if images else None


def _read_array(path: Path) -> np.ndarray:
    with (
        reading(path, "an .npz file with an array `images`", "write it anew"),
        np.load(path, allow_pickle=False) as file,
    ):
        images = file["images"][:AT_MOST]
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3 or not len(images):
        raise InputError(f"{path}: images are {images.dtype} {images.shape}, not uint8 [N, H, W, 3]")
    return np.stack([_resized(f"{path}, image {row}", image) for row, image in enumerate(images)])


def _resized(where: str, image: np.ndarray) -> np.ndarray:
    """uint8 [32, 32, 3], by bicubic interpolation of the whole image, its shape not kept (as in the OOD literature)."""
    from PIL import Image

    height, width = image.shape[:2]
    if min(height, width) < SIDE:
        raise InputError(f"{where}: {width}x{height} pixels, smaller than {SIDE}x{SIDE}; leave it out")
    if (height, width) == (SIDE, SIDE):
        return image
    return np.asarray(Image.fromarray(image).resize((SIDE, SIDE), Image.Resampling.BICUBIC))


def _dataset(source: str, images: np.ndarray) -> Dataset:
    return Dataset.clean(
        "lsun",
        images,
        None,
        source=f"{source} of the user's",
        licence="none given; research use, cite the paper",
        citation="yu2015lsun",
        parts={"test": len(images)},
        generated=False,
    )


DATASET = Description("lsun", "images", fetch)

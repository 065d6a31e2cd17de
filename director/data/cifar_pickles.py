"""The official Python batches of CIFAR-10 and CIFAR-100: the only pickles that this package reads.

A pickle is a program. These are read because many users have just them, though their publisher offers a binary form,
too. They are safe for two reasons: only a file with the publisher's MD5 is interpreted at all, and its program may call
nothing but what puts an array together.
"""

import hashlib
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from director.data.sources import PUBLISHED
from director.errors import InputError
from director.files import accessing

# What the batches name. NumPy moved its own function behind the first name; a byte array of the shape asked for is all
# that it makes here, and the array's state (type, shape, bytes) fills it.
ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): lambda kind, shape, code: np.ndarray(shape, np.uint8),
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


class _Arrays(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it calls {module}.{name}") from None


def read_batch(path: Path, md5: str, labels: str) -> tuple[np.ndarray, np.ndarray]:
    """Pixels uint8 [N, 3072] and labels int64 [N], those under the key `labels`, of a batch with this MD5.

    Raises InputError for any other file, before a byte of it is interpreted.
    """
    with accessing(path):
        content = path.read_bytes()
    if (digest := hashlib.md5(content, usedforsecurity=False).hexdigest()) != md5:
        raise InputError(f"{path}: MD5 {digest}, not the publisher's {md5}; {PUBLISHED}")
    try:
        batch = _Arrays(io.BytesIO(content), encoding="latin1").load()  # written by Python 2
        return batch["data"], np.array(batch[labels], np.int64)
    except (pickle.UnpicklingError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: not a batch of images ({error}); {PUBLISHED}") from error

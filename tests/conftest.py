"""Fixtures every test may use."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder beside the checkout with real data and golden numbers: absent elsewhere, required in CI."""
    folder = Path(os.environ.get("DIRECTOR_SHARED", ROOT.parent / "shared"))
    if not (folder / "golden").is_dir():
        message = f"golden numbers and real data are not here ({folder}); set DIRECTOR_SHARED to their folder"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return folder

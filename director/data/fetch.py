"""Getting a data set by its name: each is a module of this package with one function `fetch`."""

import importlib
from collections.abc import Iterable
from pathlib import Path


def fetch_dataset(name: str, folder: str | Path, made_from: Iterable[str | Path] = ()) -> None:
    """Fetch or generate the data set `name` into `folder`; `made_from` are the folders of the sets it is made from."""
    module = importlib.import_module(f"director.data.{name}")
    module.fetch({Path(path).name: Path(path) for path in made_from}).save(folder)

"""CoLA, out-of-domain part: 516 sentences from 6 publications that the in-domain part does not draw on."""

from pathlib import Path

from director.data.cola import fetch_files
from director.data.dataset import Dataset, Description

COUNTS = {"out_of_domain_dev.tsv": (162, 354)}  # unacceptable, acceptable


def fetch(made_from: dict[str, Path]) -> Dataset:
    """out_of_domain_dev.tsv, in its order, from where `cola` is."""
    return fetch_files("cola_ood", COUNTS)


DATASET = Description("cola_ood", "texts", fetch, shift_of="cola")

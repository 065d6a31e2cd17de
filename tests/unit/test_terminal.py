"""The main table on a terminal."""

import io
import re

import pandas as pd
import pytest

from director.__main__ import main
from director.report.tables import READABLE
from director.terminal import WIDTH, print_table


@pytest.fixture
def file(tmp_path):
    """Two experiments; the second has no corrupted suite and one row."""
    columns = [column for _, column, _, _ in READABLE]
    table = pd.DataFrame({"experiment": ["a", "a", "[b]"], "backbone": "softmax", "method": ["mle", "director", "mle"]})
    table["samples"] = [1, 10, 1]
    for number, column in enumerate(columns):
        table[column] = [0.5, 0.5 + 0.01 * (-1) ** number, 0.25]
        table[f"{column}_std"] = [0.02, float("nan"), 0.0]
    table.loc[2, [column for column in columns if column.startswith("corrupted")]] = float("nan")
    table.loc[0, "ood_auroc"] = float("nan")
    table.to_csv(tmp_path / "main.csv", index=False)
    return tmp_path / "main.csv"


def printed(file):
    stream = io.StringIO()
    print_table(file, stream)
    return stream.getvalue()


def test_it_fits_and_each_experiment_has_its_own_columns(file):
    text = printed(file)
    assert max(map(len, text.splitlines())) <= WIDTH
    first, second = text.split("[b]")
    assert first.split()[0] == "a"
    for heading, *_ in READABLE:
        assert heading.split()[0] in first
    assert "corrupted" in first and "corrupted" not in second
    assert "50.0 ± 2.0" in first and "25.0 ± 0.0" in second and " - " in first


def test_arrows_point_to_the_better_side(file):
    text = printed(file)
    assert "accuracy % ↑" in text and "NLL ↓" in text and "AURC x1000 ↓" in text
    assert not re.search(r"\b(T|tau) [↑↓]", text)


def test_the_best_of_each_column_is_bold_and_equals_share_it(file, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    table = pd.read_csv(file).loc[:1]
    table["nll"], table["accuracy"], table["temperature"] = [0.4001, 0.4002], [0.9, 0.8], [1.5, 1.0]
    table.to_csv(file, index=False)
    bold = re.findall(r"\x1b\[1m\s*([^\x1b]+?)\s*\x1b\[0m", printed(file))
    assert bold.count("0.400 ± 0.020") == 1 and bold.count("0.400") == 1, "equal as they are read"
    assert "90.0 ± 2.0" in bold and not any(cell.startswith("80.0") for cell in bold)
    assert not any(cell.startswith(("1.50", "1.00")) for cell in bold), "a temperature is not better or worse"


def test_another_file_is_one_line_with_the_remedy(tmp_path, capsys):
    other = tmp_path / "other.csv"
    other.write_text("a,b\n1,2\n")
    assert main(["table", str(other)]) == 2
    assert "not a main table" in capsys.readouterr().err
    assert main(["table", str(tmp_path / "none.csv")]) == 2


def test_the_command_prints_it(file, capsys):
    assert main(["table", str(file)]) == 0
    assert "director" in capsys.readouterr().out

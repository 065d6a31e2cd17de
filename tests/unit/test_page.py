"""The page of results says what the tables say, and needs nothing but itself."""

import re

import pandas as pd
import pytest

from director.errors import InputError
from director.files import write_json
from director.methods import METHODS, Method
from director.numbers.compare_rows import COLUMNS
from director.numbers.measure import FORMAT
from director.report.page import body_of, write_page
from director.report.tables import FITTED, MAIN


@pytest.fixture
def page(tmp_path):
    """Of the rows `mle`, `ensemble` and `director`, the reference, with S = 1 and 10."""
    rows = []
    for method, samples, seeds, accuracy, nll in (
        ("mle", 1, 2, 0.9, 0.3),
        ("ensemble", 2, 1, 0.95, 0.2),
        ("director", 1, 2, 0.91, 0.35),
        ("director", 10, 2, 0.92, 0.25),
    ):
        row = {"experiment": "e", "backbone": "softmax", "method": method, "samples": samples, "seeds": seeds}
        row |= {name: None for column in (*MAIN, *FITTED) for name in (column, f"{column}_std")}
        std = 0.01 if seeds > 1 else None
        rows.append(row | {"accuracy": accuracy, "accuracy_std": std, "nll": nll, "nll_std": std})
    pd.DataFrame(rows).to_csv(tmp_path / "main.csv", index=False)
    lines = [
        "e,softmax,mle,1,test,accuracy,softmax/director,2,-0.02,-0.03,-0.01,0.95,0.1,0.4",
        "e,softmax,ensemble,2,test,accuracy,softmax/director,1,0.03,0.0004,0.05,0.95,,",
        "e,softmax,mle,1,test,nll,softmax/director,2,0.05,-0.01,0.1,0.95,0.01,0.04",
        "e,softmax,ensemble,2,test,nll,softmax/director,1,-0.05,-0.1,-0.02,0.95,,",
    ]
    (tmp_path / "comparison.csv").write_text("\n".join([",".join(COLUMNS), *lines]) + "\n")
    about = {"experiment": "e", "backbone": "softmax", "method": "mle", "seed": 0, "suite": "test", "commit": "abc" * 9}
    write_json(
        tmp_path / "metrics.json", {"format": FORMAT, "methods": {"mle": {"test": {"about": about, "records": []}}}}
    )
    write_page(tmp_path / "main.html", tmp_path, [tmp_path / "metrics.json"], {"mle": "a <b> pass"})
    return (tmp_path / "main.html").read_text()


def test_the_best_mean_of_a_column_is_marked(page):
    assert re.findall(r'<td class="best" data-value="([^"]+)">', page) == ["0.95", "0.2"]


def test_a_cell_tells_its_difference_and_on_which_side_of_0_it_is(page):
    assert '90.0 ± 1.0<small class="worse">−2.0 [−3.0, −1.0]</small>' in page
    assert '95.0<small class="better">+3.00 [+0.04, +5.00]</small>' in page, "as many decimals as it takes"
    assert '0.300 ± 0.010<small class="same">+0.050 [−0.010, +0.100]</small>' in page
    assert page.count("<small") == 4, "the reference and its S = 1 have none"


def test_findings_are_what_the_intervals_carry(page):
    assert "worse in accuracy (−2.0 [−3.0, −1.0]); not told apart in NLL." in page
    assert "better in accuracy (+3.00 [+0.04, +5.00]), NLL (−0.050 [−0.100, −0.020])." in page
    assert "3 of 4 exclude 0" in page and "below 0.05 for 1" in page


def test_it_names_commit_columns_and_methods(page):
    assert "Predictions were made by commit abcabcabca." in page
    assert "<dt>NLL</dt>" in page and "<dt>Brier</dt>" not in page, "no row has it"
    assert "<dt>mle</dt><dd>a &lt;b&gt; pass</dd>" in page


def test_it_needs_nothing_from_elsewhere(page):
    assert not re.search(r"https?:|src=|<link|<script", page)


def test_it_fits_into_another_page(page, tmp_path):
    body = body_of(tmp_path / "main.html")
    assert body.startswith('<div class="study">') and "<h2>e</h2>" in body and "<body" not in body
    assert max(map(len, body.splitlines())) < 10_000, "what docutils takes"
    (tmp_path / "main.html").write_text("other")
    with pytest.raises(InputError, match=r"main\.html: not a page of results"):
        body_of(tmp_path / "main.html")


def test_every_method_is_told_in_words():
    assert METHODS["mle"].in_words() == "the trained backbone, one pass"
    assert METHODS["temperature"].in_words().startswith("the predictions of mle, divided by one temperature")
    assert "multiplied" in METHODS["director"].with_fitted_noise().in_words()
    assert len({method.in_words() for method in METHODS.values()}) == len(METHODS)
    assert Method("new", "backbone", "dropout").in_words() == "the trained backbone, samples with dropout on"

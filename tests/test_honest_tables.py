"""Tables as they come from a spreadsheet, and what must not flatter a model that was trained on them."""

from pathlib import Path

import numpy as np
import pytest

from fedspam import datasets
from fedspam.app.config import ConfigError, decode
from fedspam.app.experiment import make

AUTO = {"name": "fedavg", "cohort_size": 2, "local_steps": 2, "local_rate": 0.3}


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


# --- what a spreadsheet writes ---


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_the_separator_is_found_in_the_header(separator: str, tmp_path: Path) -> None:
    lines = [["site", '"a, b; c"', "ill"], ["x", "1", "0"], ["y", "2", "1"]]
    path = written(tmp_path / "rows.csv", "\n" + "\n".join(separator.join(cells) for cells in lines))
    assert datasets.open_table(path).names == ["site", "a, b; c", "ill"]
    assert datasets.csv_columns(path) == ["site", "a, b; c", "ill"]
    assert datasets.read_csv(path, client="site", label="ill").examples["features"].tolist() == [[1.0], [2.0]]
    assert datasets.open_table(path, delimiter="~").names != ["site", "a, b; c", "ill"]


def test_a_decimal_comma_is_a_number_where_commas_do_not_separate(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "site;price;rate;note\nx;3,5;1;a,b\ny;-,25;2,5e1;1,5\nz;;7;c\n")
    table = datasets.open_table(path)
    np.testing.assert_array_equal(table.column("price"), [3.5, -0.25, np.nan])
    np.testing.assert_array_equal(table.column("rate"), [1, 25, 7])
    assert table.column("note").tolist() == ["a,b", "1,5", "c"]
    quoted = written(tmp_path / "b.csv", 'site,price\nx,"3,5"\ny,"4,5"\n')
    assert datasets.open_table(quoted).column("price").tolist() == ["3,5", "4,5"]
    mixed = written(tmp_path / "c.csv", "site;price\nx;3,5\ny;1.234\n")
    with pytest.raises(ValueError, match=r"line 3: price is '1.234'; it must be a finite number with a decimal comma"):
        datasets.open_table(mixed).column("price")


@pytest.mark.parametrize(
    "dates", ["2024-03-{:02}", "{}.3.2024", "{:02}/03/24", "2024-03-{:02}T12:30:00Z", "2024/3/{} 7:15"]
)
def test_dates_are_refused_unless_they_are_named_as_categories(dates: str) -> None:
    table = {"site": "ab" * 300, "visit": [dates.format(1 + row % 28) for row in range(600)], "ill": "0110" * 150}
    with pytest.raises(ValueError, match=r"row 1: visit is '.*'; a date cannot be a feature: replace it by a number"):
        datasets.read_table(table, client="site", label="ill")
    named = datasets.read_table(table, client="site", label="ill", categories=["visit"])
    assert len(datasets.Encoder.of_table(named).names) == 28


def test_versions_and_codes_are_no_dates() -> None:
    table = {"site": "ab" * 6, "code": ["1.2.3", "10-20", "A1/2"] * 4, "ill": "01" * 6}
    assert datasets.read_table(table, client="site", label="ill").examples["code"].dtype == object


def test_bytes_of_labeled_images_become_shares(tmp_path: Path) -> None:
    images, labels = tmp_path / "images", tmp_path / "labels"
    images.write_bytes(bytes([0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 2, 0, 51, 255, 102]))
    labels.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 3]))
    scaled = datasets.read_labeled(images, labels)["features"]
    assert scaled.dtype == np.float32
    np.testing.assert_allclose(scaled, [[0, 0.2], [1, 0.4]], atol=1e-7)
    assert datasets.read_labeled(images, labels, scaled=False)["features"].tolist() == [[0, 51], [255, 102]]


# --- what is held out ---


def test_a_share_that_leaves_too_little_or_holds_out_nothing_is_told() -> None:
    digits = {"algorithm": AUTO, "model": "softmax", "clients": {"split": "iid", "count": 1797}}
    with pytest.raises(ConfigError, match=r"^data.test = 0.9999 leaves too little to train with; hold out less"):
        make(decode({"data": {"kind": "digits", "test": 0.9999}, **digits}))
    with pytest.warns(UserWarning, match="data.test = 0.2 holds out no row, since no client has 3 rows"):
        assert "accuracy" not in make(decode({"data": {"kind": "digits"}, **digits})).metrics

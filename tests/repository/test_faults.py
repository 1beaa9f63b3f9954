"""The table of faults that `benchmarks/faults.py` plants fits the code: each can be planted, and its test exists."""

import ast

import pytest

from loading import ROOT, benchmark

faults = benchmark("faults")


def test_every_fault_can_be_planted_and_its_test_exists():
    table = faults.faults()
    assert len({fault.claim for fault in table}) == len(table)
    for fault in table:
        changed = faults.planted((ROOT / fault.file).read_text(encoding="utf-8"), fault)
        if fault.file.endswith(".py"):
            ast.parse(changed)
        file, _, name = fault.test.partition("::")
        assert f"def {name.partition('[')[0]}(" in (ROOT / "tests" / file).read_text(encoding="utf-8"), fault.test


def test_a_fault_that_no_longer_fits_is_told():
    fault = faults.faults()[0]
    with pytest.raises(ValueError, match=r"0 times; it must be once"):
        faults.planted("", fault)

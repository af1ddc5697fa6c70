"""The list of planted defects stays true: each still applies, and names tests that are there (`make mutants` runs them)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from mutants import Mutant, list_mutants  # noqa: E402

ALL = list_mutants()
PROMISES = {
    "never overspend", "never leak", "never lose a measurement", "never lie", "never obey a machine", "never guess",
}  # fmt: skip


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.name)
def test_a_planted_defect_applies_and_has_tests_that_must_notice(mutant: Mutant) -> None:
    assert mutant.planted((ROOT / mutant.file).read_text(encoding="utf-8"))
    assert mutant.promise in PROMISES
    assert mutant.tests
    for test in mutant.tests:
        path, _, name = test.partition("::")
        assert f"def {name.partition('[')[0]}" in (ROOT / path).read_text(encoding="utf-8")


def test_a_patch_that_no_longer_applies_is_an_error() -> None:
    one = Mutant("x", "never lie", "x.py", "a", "b", ())
    assert one.planted("xax") == "xbx"
    for text in ("", "aa"):
        with pytest.raises(ValueError, match="places of which one was meant"):
            one.planted(text)


def test_every_defect_has_a_name_of_its_own() -> None:
    assert len({mutant.name for mutant in ALL}) == len(ALL)

"""What is checked of the computer that bench runs on."""

from __future__ import annotations

from datetime import date

from orchestrator.core.doctor import here
from orchestrator.core.doctor.verdicts import CheckLevel


def test_this_machines_python_and_libraries_are_new_enough_or_named() -> None:
    assert here.check_python((3, 12, 1)).level is CheckLevel.OK
    assert here.check_python((3, 10, 9)).level is CheckLevel.FAIL
    needed = ("typer>=0.20", "rich[all]>=13.9", "torch==2; extra == 'cpu'", "plain", ">=1")
    there = {"typer": "0.21rc1", "rich": "13.10", "plain": "odd"}
    assert here.check_libraries(needed, there).why == "3 libraries, all installed and new enough"
    assert here.check_libraries(needed, there | {"rich": "13.8"}).remedy == "pip install --upgrade rich"
    assert here.check_libraries(needed, {"rich": "1"}).remedy == "pip install --upgrade typer plain rich"
    assert here.parse_release("odd") == ()


def test_the_folder_the_files_and_the_prices_are_judged() -> None:
    assert here.check_home("/h", "read-only", 0, "export BENCH_HOME=/tmp/h").level is CheckLevel.FAIL
    assert here.check_home("/h", "", 10, "export BENCH_HOME=/tmp/h").level is CheckLevel.WARN
    assert here.check_home("/h", "", 1 << 40, "export BENCH_HOME=/tmp/h").level is CheckLevel.OK
    assert here.check_documents((), 5).level is CheckLevel.OK
    mine = here.check_documents((("my.yaml", "my.yaml:2: x\nmore"), ("l4", "y")), 5)
    assert (mine.why, mine.remedy) == ("my.yaml:2: x (and 1 more)", "bench plan my.yaml")
    assert here.check_documents((("l4", "--set budget.per_run_usd=x"),), 5).remedy == "bench plan --gpu l4"
    ages = [
        here.check_prices(date(2026, 6, 1), day).level
        for day in (date(2026, 5, 1), date(2026, 6, 9), date(2026, 12, 1))
    ]
    assert ages == [CheckLevel.WARN, CheckLevel.OK, CheckLevel.WARN]


def test_the_embedded_cloud_the_compiler_and_torch_matter_where_they_are_used() -> None:
    levels = {state: here.check_embedded(here.Embedded(state)).level for state in ("up", "down", "old", "stale")}
    assert levels == {"up": CheckLevel.OK, "down": CheckLevel.OK, "old": CheckLevel.WARN, "stale": CheckLevel.WARN}
    assert [here.check_compiler(path, uses).level for path, uses in (("/g++", True), ("", True), ("", False))] == [
        CheckLevel.OK,
        CheckLevel.FAIL,
        CheckLevel.OK,
    ]
    assert [here.check_torch(version, uses).level for version, uses in (("2", True), ("", True), ("", False))] == [
        CheckLevel.OK,
        CheckLevel.WARN,
        CheckLevel.OK,
    ]

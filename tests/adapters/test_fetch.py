"""Fetching: whole or said to be partial, twice as good as once, and never outside its folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.adapters.fetch import Fetched, fetch_run
from orchestrator.core import events as ev
from orchestrator.core.errors import LocalError
from orchestrator.core.results import COLUMNS
from orchestrator.core.run import Run, replay
from tests.core.builders import RUN, at, gone, measured, running
from tests.support.memory_bucket import MemoryBucket

CASES = ("b1-h2-kv2-q16-k16-d64-full-float32", "b1-h2-kv2-q32-k32-d64-full-float32")


def csv_of(case_id: str, *latencies: float) -> bytes:
    lines = [",".join(COLUMNS)]
    for repeat, latency in enumerate(latencies, 1):
        seq = case_id.split("-")[3][1:]
        cells = {
            "run_id": RUN, "vm": "vm", "case_id": case_id, "device": "NVIDIA L4", "implementation": "bench", "dtype": "float32",
            "batch": "1", "heads": "2", "kv_heads": "2", "seq_q": seq, "seq_k": seq, "head_dim": "64", "causal": "false",
            "regime": "burst", "block": str(repeat), "repeat": str(repeat), "latency_us": str(latency),
        }  # fmt: skip
        lines.append(",".join(cells.get(column, "") for column in COLUMNS))
    return ("\n".join(lines) + "\n").encode()


def stored(*cases: str) -> MemoryBucket:
    bucket = MemoryBucket("results")
    for case in cases:
        bucket.create(f"runs/{RUN}/cases/{case}.csv", csv_of(case, 10.0, 12.0, 11.0))
    bucket.create(f"runs/{RUN}/artifacts/environment.json", b"{}")
    bucket.create(f"runs/{RUN}/artifacts/log.txt", b"all is well\n")
    return bucket


def run_of(*facts: ev.Fact) -> Run:
    log = running().vm(11, ev.MeasurementPlanned(cases=2, total=2, measurements_per_implementation=6))
    for second, fact in enumerate(facts, 12):
        log.add(second, fact)
    run = replay(log.events)
    assert run is not None
    return run


OVER = (gone(64), ev.RunClosed(outcome="succeeded"))


def test_everything_comes_and_is_put_together(tmp_path: Path) -> None:
    fetched = fetch_run(stored(*CASES), run_of(measured(CASES[0]), measured(CASES[1]), *OVER), tmp_path)
    assert (fetched.complete, fetched.cases, fetched.measurements, fetched.downloaded) == (True, 2, 6, 4)
    folder = tmp_path / RUN
    lines = (folder / "measurements.csv").read_text().splitlines()
    assert len(lines) == 7
    assert [summary.median_us for summary in fetched.summaries] == [11.0, 11.0]
    assert (folder / "log.txt").read_text() == "all is well\n"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["complete"] is True
    assert {file["path"] for file in manifest["files"]} == {f"cases/{case}.csv" for case in CASES} | {
        "environment.json",
        "log.txt",
    }


def everything_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_second_fetch_downloads_nothing_and_changes_nothing(tmp_path: Path) -> None:
    bucket, run = stored(*CASES), run_of(*OVER)
    fetch_run(bucket, run, tmp_path)
    before = everything_in(tmp_path)
    again = fetch_run(bucket, run, tmp_path)
    assert (again.downloaded, again.already_there) == (0, 4)
    assert everything_in(tmp_path) == before


def test_a_damaged_or_missing_file_is_fetched_again_and_alone(tmp_path: Path) -> None:
    bucket, run = stored(*CASES), run_of(*OVER)
    fetch_run(bucket, run, tmp_path)
    whole = everything_in(tmp_path)
    damaged = tmp_path / RUN / "cases" / f"{CASES[0]}.csv"
    damaged.write_bytes(damaged.read_bytes().replace(b"11.0", b"19.0"))
    (tmp_path / RUN / "log.txt").unlink()
    assert fetch_run(bucket, run, tmp_path).downloaded == 2
    assert everything_in(tmp_path) == whole


@pytest.mark.parametrize("facts", [(), OVER], ids=["still running", "over, one case short"])
def test_a_fetch_of_less_than_all_says_so(tmp_path: Path, facts: tuple[ev.Fact, ...]) -> None:
    fetched = fetch_run(stored(CASES[0]), run_of(*facts), tmp_path)
    assert (fetched.complete, fetched.cases, fetched.cases_total) == (False, 1, 2)
    assert json.loads((tmp_path / RUN / "manifest.json").read_text())["complete"] is False


def test_a_run_that_stored_nothing_makes_an_empty_table(tmp_path: Path) -> None:
    fetched: Fetched = fetch_run(MemoryBucket("results"), run_of(), tmp_path)
    assert (fetched.cases, fetched.measurements, fetched.summaries) == (0, 0, ())
    assert (tmp_path / RUN / "measurements.csv").read_text().strip() == ",".join(COLUMNS)


@pytest.mark.parametrize(
    "name", ["artifacts/../../../evil", "cases/../../evil.csv", "artifacts//etc/evil", "cases/a\\..\\b.csv"]
)
def test_a_name_that_would_leave_the_folder_is_refused_before_anything_is_written(tmp_path: Path, name: str) -> None:
    bucket = stored(*CASES)
    bucket.create(f"runs/{RUN}/{name}", b"evil")
    with pytest.raises(LocalError):
        fetch_run(bucket, run_of(*OVER), tmp_path / "into")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_folder_that_cannot_be_written_is_refused_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for into in (tmp_path / "file", Path("/proc/results")):
        with pytest.raises(LocalError) as refusal:
            fetch_run(stored(), run_of(), into)
        assert refusal.value.exit_code == 11
        assert "--into" in refusal.value.hint


def test_what_was_spent_and_where_it_ran_is_in_the_manifest(tmp_path: Path) -> None:
    from decimal import Decimal

    facts = (ev.Settled(cost_usd=Decimal("0.0060"), released_usd=Decimal("0.17")), *OVER)
    fetch_run(stored(*CASES), run_of(ev.EnvironmentRecorded(device="NVIDIA L4", device_kind="cuda"), *facts), tmp_path)
    manifest = json.loads((tmp_path / RUN / "manifest.json").read_text())
    assert manifest["cost_usd"] == "0.0060"
    assert manifest["device"] == "NVIDIA L4"
    assert manifest["vms"][0]["zone"] == "us-central1-a"
    assert manifest["started_at"] == f"{at(0):%Y-%m-%dT%H:%M:%SZ}"

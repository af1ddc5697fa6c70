"""Fetching: whole or said to be partial, twice as good as once, and never outside its folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from orchestrator.adapters.fetch import Fetched, _is_own_name, fetch_run
from orchestrator.api.results import read_report, write_files
from orchestrator.core.bundled import AXES
from orchestrator.core.errors import LocalError
from orchestrator.core.naming import plan_object
from orchestrator.core.results import MEASURED, ORIGIN
from orchestrator.core.run import events as ev
from orchestrator.core.run.fold import Run, replay
from orchestrator.ports import ObjectEntry
from tests.support.memory_bucket import MemoryBucket
from tests.unit.core.builders import RUN, VM, at, gone, measured, running

COLUMNS = (*ORIGIN, *AXES, *MEASURED)

CASES = ("b1-h2-kv2-q16-k16-d64-full-float32", "b1-h2-kv2-q32-k32-d64-full-float32")


def csv_of(case_id: str, *latencies: float) -> bytes:
    lines = [",".join(COLUMNS)]
    for repeat, latency in enumerate(latencies, 1):
        seq = case_id.split("-")[3][1:]
        cells = {
            "run_id": RUN, "vm": VM, "case_id": case_id, "device": "NVIDIA L4", "implementation": "bench", "dtype": "float32",
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
    assert (fetched.complete, fetched.cases, fetched.downloaded) == (True, 2, 4)
    folder = tmp_path / RUN
    lines = (folder / "measurements.csv").read_text().splitlines()
    assert len(lines) == 7
    assert (folder / "log.txt").read_text() == "all is well\n"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["complete"] is True
    assert {file["path"] for file in manifest["files"]} == {f"cases/{case}.csv" for case in CASES} | {
        "environment.json",
        "log.txt",
    }


def test_a_run_of_a_users_workload_leaves_no_configuration_of_something_else(tmp_path: Path) -> None:
    for workload, there in ((None, True), ({"path": "/home/ada/norm.py"}, False)):
        bucket, folder = stored(*CASES), tmp_path / str(there)
        settings = {"gpu": "cpu", "measure": {"repeats": 9}, "workload": workload}
        bucket.create(plan_object(RUN), json.dumps({"settings": settings}).encode())
        fetch_run(bucket, run_of(measured(CASES[0]), *OVER), folder)
        assert (folder / RUN / "repeat.yaml").exists() is there
        assert json.loads((folder / RUN / "manifest.json").read_text())["repeat"] is there


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
    assert (fetched.cases, fetched.cases_total, fetched.complete) == (0, 2, False)
    assert (tmp_path / RUN / "measurements.csv").read_text().strip() == ",".join(COLUMNS)


ODD_NAMES = (
    "artifacts/../../../evil", "cases/../../evil.csv", "artifacts//etc/evil", "cases/a\\..\\b.csv", "artifacts/.git/config",
    "artifacts/x/.envrc", "artifacts/cases", "artifacts/cases/a.csv", "artifacts/manifest.json", "artifacts/log.txt/more",
    "artifacts/\x1b[2J.txt", "artifacts/" + "x" * 300, "artifacts/machines/a", "artifacts/measurements.csv",
    "artifacts/repeat.yaml", "artifacts/Repeat.YAML", "artifacts/profile.html", "artifacts/latency.svg",
    "artifacts/measurements.csv.gz",
)  # fmt: skip


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_name_that_is_no_place_in_the_folder_is_left_out_and_named(tmp_path: Path, name: str) -> None:
    bucket = stored(*CASES)
    bucket.create(f"runs/{RUN}/{name}", b"evil")
    fetched = fetch_run(bucket, run_of(*OVER), tmp_path / "into")
    assert list(fetched.left_out) == [f"runs/{RUN}/{name}"]
    assert all(text.isprintable() for text in fetched.left_out.values())
    assert (fetched.cases, fetched.complete) == (2, True)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert all(path.read_bytes() != b"evil" for path in files)
    assert not [path for path in files if any(part.startswith(".") for part in path.relative_to(tmp_path).parts)]
    assert (tmp_path / "into" / RUN / "log.txt").read_bytes() == b"all is well\n"


@dataclass
class Boasting(MemoryBucket):
    """Some of its objects are as large as they are said to be."""

    sizes: Mapping[str, int] = field(default_factory=dict)

    def list(self, prefix: str, **which: object) -> tuple[ObjectEntry, ...]:
        listed = super().list(prefix, **which)  # type: ignore[arg-type]
        return tuple(replace(one, size=self.sizes.get(one.name, one.size)) for one in listed)


@pytest.mark.parametrize(
    "sizes",
    [{"artifacts/big": 2**40}, {f"cases/{CASES[0]}x.csv": 100 * 2**20}, {f"artifacts/{n}": 2**30 for n in range(5)}],
    ids=["one artifact", "a case", "all together"],
)
def test_what_is_larger_than_any_run_stores_is_not_fetched_but_named(tmp_path: Path, sizes: dict[str, int]) -> None:
    """Who fetches pays for what leaves the region, and whoever may write below runs/ decides how much that is."""
    names = {f"runs/{RUN}/{name}": size for name, size in sizes.items()}
    bucket, plain = Boasting("results", sizes=names), stored(*CASES)
    for name, blob in plain.read_many([one.name for one in plain.list("")]).items():
        bucket.create(name, blob.data)
    for name in names:
        bucket.create(name, b"x" * 10)
    fetched = fetch_run(bucket, run_of(*OVER), tmp_path)
    assert set(fetched.left_out) <= set(names)
    assert sum(size for name, size in names.items() if name not in fetched.left_out) <= 4 * 2**30
    assert all("more than any run of bench stores" in why for why in fetched.left_out.values())
    assert fetched.left_out
    assert (fetched.cases, fetched.complete) == (2, True)


GOOD = csv_of("b1-h1-kv1-q8-k8-d64-full-float32", 10.0, 11.0)
DAMAGED = {
    "torn": GOOD[:-30],
    "not UTF-8": GOOD.replace(b"NVIDIA", b"\xff\xfe"),
    "empty": b"",
    "no table": b"hello\n",
    "of another case": GOOD.replace(b"-q8-", b"-q9-"),
    "of another run": GOOD.replace(RUN.encode(), b"20200101-000000-l4-ffff"),
    "of a machine that was never asked for": GOOD.replace(VM.encode(), b"bench-somebody-1"),
    "as slow as nothing is": GOOD.replace(b"11.0", b"1e308"),
    "as fast as nothing is": GOOD.replace(b"11.0", b"-1"),
    "not a number": GOOD.replace(b"11.0", b"nan"),
    "with a cell of two hundred thousand characters": GOOD.replace(b"NVIDIA L4", b"x" * 200_000),
}


@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED)
def test_a_case_that_is_incomplete_or_of_another_run_is_left_out_and_named(tmp_path: Path, data: bytes) -> None:
    bucket = stored(*CASES)
    name = f"runs/{RUN}/cases/b1-h1-kv1-q8-k8-d64-full-float32.csv"
    bucket.create(name, data)
    fetched = fetch_run(bucket, run_of(*OVER), tmp_path)
    assert list(fetched.left_out) == [name]
    assert name in fetched.left_out[name]
    assert fetched.cases == 2
    assert "q8" not in (tmp_path / RUN / "measurements.csv").read_text()


def test_a_whole_case_of_this_run_is_taken(tmp_path: Path) -> None:
    bucket = stored(*CASES)
    bucket.create(f"runs/{RUN}/cases/b1-h1-kv1-q8-k8-d64-full-float32.csv", GOOD)
    fetched = fetch_run(bucket, run_of(*OVER), tmp_path)
    assert (fetched.cases, dict(fetched.left_out)) == (3, {})


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
    assert manifest["time"]["paid_s"] > 0
    assert manifest["vms"][0]["zone"] == "us-central1-a"
    assert manifest["started_at"] == f"{at(0):%Y-%m-%dT%H:%M:%SZ}"


def test_what_measures_the_same_again_holds_the_grid_and_nothing_that_runs_or_spends(tmp_path: Path) -> None:
    """The plan lies in the bucket, where a machine can write."""
    bucket = stored(*CASES)
    settings = {
        "gpu": "l4", "measure": {"repeats": 7}, "alerts": {"command": "curl evil"}, "payload": {"root": "/etc"},
        "budget": {"per_run_usd": "999"}, "run": {"max_minutes": 10000},
    }  # fmt: skip
    bucket.create(f"runs/{RUN}/plan.json", json.dumps({"settings": settings}).encode())
    fetch_run(bucket, run_of(*OVER), tmp_path)
    kept = json.loads((tmp_path / RUN / "repeat.yaml").read_text())
    assert kept == {"gpu": "l4", "measure": {"repeats": 7}}
    assert json.loads((tmp_path / RUN / "manifest.json").read_text())["repeat"] is True


@pytest.mark.parametrize("plan", [b"", b"[]", b"{", b'{"settings": 3}', b'{"settings": {"run": {}}}', b"\xff"])
def test_a_plan_that_cannot_be_read_costs_the_command_and_nothing_else(tmp_path: Path, plan: bytes) -> None:
    bucket = stored(*CASES)
    bucket.create(f"runs/{RUN}/plan.json", plan)
    assert fetch_run(bucket, run_of(*OVER), tmp_path).complete
    assert not (tmp_path / RUN / "repeat.yaml").exists()
    assert json.loads((tmp_path / RUN / "manifest.json").read_text())["repeat"] is False


def test_every_file_a_command_adds_to_results_has_a_name_no_artifact_may_have(tmp_path: Path) -> None:
    """`repeat.yaml` is launched by whoever reads a report, so one that a machine brought would choose what runs."""
    for name in (
        "repeat.yaml",
        "report.html",
        "report.md",
        "report.json",
        "profile.html",
        "summary.csv",
        "verdicts.csv",
    ):
        assert _is_own_name(Path(name))
    bucket = stored(*CASES)
    bucket.create(f"runs/{RUN}/artifacts/repeat.yaml", b"alerts: {command: touch evil}")
    bucket.create(f"runs/{RUN}/plan.json", b'{"schema": 2}')
    fetch_run(bucket, run_of(*OVER), tmp_path)
    added = write_files(read_report(tmp_path / RUN), tmp_path / RUN)
    assert all(_is_own_name(path.relative_to(tmp_path / RUN)) for path in added)
    assert "touch evil" not in "".join(path.read_text() for path in (tmp_path / RUN).glob("*.yaml"))

"""Machines and specs that the agent cannot work with, and defects of its own."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from startup.agent.__main__ import main
from tests.unit.startup.cloud import Cloud
from tests.unit.startup.conducted import Conducted, cause, cloud_for, ended, environ
from tests.unit.startup.machine import payload, run_spec


def test_a_run_that_needs_an_installation_is_not_healed_where_none_is_allowed(tmp_path: Path) -> None:
    with cloud_for(require_cuda=True, timing={"driver_wait_s": 0.1}) as cloud:
        assert Conducted(cloud, tmp_path).code == 1
        assert cause(cloud) == "no_cuda"
        assert ended(cloud)["phase"] == "preflight"


def test_a_full_disk_is_named_and_nobodys_caches_are_emptied(tmp_path: Path) -> None:
    environment = {"torch": "2.13.0", "allow_install": False, "min_free_gb": 1e9}
    with cloud_for(environment=environment) as cloud:
        Conducted(cloud, tmp_path)
        assert cause(cloud) == "disk_full"


def test_a_defect_of_the_agent_is_reported_as_one(tmp_path: Path) -> None:
    (tmp_path / "vm" / "spec.json").mkdir(parents=True)
    with cloud_for() as cloud:
        run = Conducted(cloud, tmp_path)
        assert run.code == 1
        assert cause(cloud) == "agent_crashed"
        assert ended(cloud)["outcome"] == "failed"


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda spec: spec.clear(), "schema 1"),
        (lambda spec: spec["phase_limits_s"].pop("measure"), "measure"),
        (lambda spec: spec["harness"].update(implementations=[]), "implementations"),
        (lambda spec: spec.update(attempt="first"), "attempt"),
        (lambda spec: spec.update(timing=[1]), "timing"),
    ],
)
def test_a_spec_that_cannot_be_read_stops_the_agent_before_it_starts(
    tmp_path: Path, spoil: Callable[[dict[str, Any]], None], says: str
) -> None:
    spec = run_spec()
    spoil(spec)
    with Cloud(spec, payload()) as cloud:
        console = io.StringIO()
        assert main(environ(cloud, tmp_path), console) == 3
        assert "cannot start" in console.getvalue()
        assert cloud.journal == []


def test_metadata_that_is_no_json_or_not_there_stops_the_agent_before_it_starts(tmp_path: Path) -> None:
    with cloud_for() as cloud:
        where = environ(cloud, tmp_path)
        cloud.metadata["instance/attributes/bench-run"] = "{"
        assert main(where, io.StringIO()) == 3
        del cloud.metadata["instance/attributes/bench-run"]
        assert main(where, io.StringIO()) == 3
        cloud.fail("bench-run", status=403)
        assert main(where, io.StringIO()) == 3

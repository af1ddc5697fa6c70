"""What is refused before a fleet is stored, and what is said of one that cannot go on."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from orchestrator.wiring import wire
from tests.integration.cli.conftest import Bench


@pytest.mark.usefixtures("cloud")
def test_a_cluster_that_does_not_answer_leaves_no_fleet_and_no_hold(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = tmp_path / "slurm.conf"
    nowhere.write_text("ClusterName=nowhere\n")  # for a file that is not there Slurm's programs wait a minute
    monkeypatch.setenv("SLURM_CONF", str(nowhere))
    sweep = tmp_path / "sweep.yaml"
    sweep.write_text(
        f"{{axes: {{gpu: [l4]}}, engine: slurm, usd_per_hour: 0.05, slurm: {{folder: {tmp_path}/shared}}}}"
    )
    refused = bench("fleet", "launch", str(sweep), "--detach", code=None)
    assert refused.code in ((2, 6) if shutil.which("scontrol") else (15,)), refused.err
    assert "scontrol" in refused.err
    assert bench("fleet", "ls", "--json").document["fleets"] == []
    assert not wire().ledger.read().runs
    assert not (tmp_path / "shared").exists()


@pytest.mark.parametrize("command", ["plan", "launch"])
@pytest.mark.usefixtures("cloud")
def test_a_cap_under_which_no_child_can_begin_is_refused_before_anything_is_stored(bench: Bench, command: str) -> None:
    refused = bench("fleet", command, "--gpu", "l4", "--cap", "0.10", code=3).err
    assert "a child of this fleet can cost up to $" in refused
    assert "--cap " in refused
    assert bench("fleet", "ls", "--json").document["fleets"] == []
    bench("fleet", "plan", "--gpu", "l4", "--repeats", "9", "--cap", "0.90")

"""What is refused before anything is asked for: the words, and the exit code."""

from __future__ import annotations

import http.client
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from orchestrator.wiring import wire
from tests.integration.cli.conftest import Bench
from tests.support.patience import PATIENCE_S


@pytest.mark.usefixtures("cloud")
def test_every_mistake_in_a_file_is_named_at_once(bench: Bench) -> None:
    Path("bad.yaml").write_text("gpu: l4\ncolour: blue\nmeasure:\n  repeats: many\n")
    err = bench("plan", "bad.yaml", code=2).err
    assert "bad.yaml:2" in err
    assert "bad.yaml:4" in err


@pytest.mark.parametrize("window", ["run", "day", "month"])
@pytest.mark.usefixtures("cloud")
def test_a_cap_that_is_too_small_is_refused_with_exit_3_before_anything_is_asked_for(bench: Bench, window: str) -> None:
    ran = bench("launch", "--gpu", "l4", "--set", f"budget.per_{window}_usd=0.0001", code=3)
    assert "needs at least $" in ran.err
    assert f"budget.per_{window}_usd" in ran.err
    assert bench.control("/control/bill")["rows"] == []
    assert bench("status", "--json").document["runs"] == []


def test_a_project_without_a_bucket_is_refused(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    (bench.home / "settings.yaml").write_text("project: some-project-1\n")
    assert "BENCH_BUCKET" in bench("status", code=2).err
    (bench.home / "settings.yaml").unlink()
    monkeypatch.setenv("BENCH_PROJECT", "some-project-1")
    assert "BENCH_BUCKET" in bench("status", code=2).err


def test_missing_credentials_are_named_with_the_remedy_and_not_waited_for(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCH_PROJECT", "some-project-1")
    monkeypatch.setenv("BENCH_BUCKET", "some-bucket")
    monkeypatch.setenv("HOME", str(bench.home))
    begun = time.monotonic()
    ran = bench("launch", "--gpu", "l4", code=6)
    assert time.monotonic() - begun < PATIENCE_S
    assert "gcloud auth application-default login" in ran.err


def test_a_home_that_cannot_be_made_and_weather_that_is_not_there_are_named(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCH_WEATHER", "nowhere.yaml")
    assert "there is no file nowhere.yaml" in bench("status", code=2).err
    monkeypatch.delenv("BENCH_WEATHER")
    monkeypatch.setenv("BENCH_HOME", "/proc/nowhere")
    assert "cannot make /proc/nowhere" in bench("status", code=11).err


def test_a_bucket_that_is_gone_is_named(bench: Bench) -> None:
    address = wire().address
    assert address is not None
    split = urlsplit(address.storage)
    connection = http.client.HTTPConnection(str(split.hostname), split.port)
    connection.request(
        "DELETE", f"/storage/v1/b/{address.bucket}", headers={"Authorization": f"Bearer {address.token}"}
    )
    answer = connection.getresponse()
    answer.read()
    connection.close()
    assert answer.status in (200, 204)
    for command in (["status"], ["launch", "--gpu", "l4"], ["costs"]):
        assert f"there is no bucket gs://{address.bucket}" in bench(*command, code=10).err


@pytest.mark.parametrize("command", [["status"], ["logs"], ["stop"], ["fetch"]])
@pytest.mark.usefixtures("cloud")
def test_a_run_that_does_not_exist_is_exit_10(bench: Bench, command: list[str]) -> None:
    assert bench(*command, "20200101-000000-l4-ffff", code=10).err.startswith("error: run not found: ")
    assert "run not found: zebra" in bench(*command, "zebra", code=10).err
    assert "there are no runs yet" in bench(*command, "last", code=10).err


@pytest.mark.usefixtures("cloud")
def test_nothing_to_show_is_said(bench: Bench) -> None:
    assert "no runs yet" in bench("status").out
    assert "VMs alive now: 0" in bench("status").out
    assert "nothing was spent yet" in bench("costs").out


def test_the_clouds_own_commands_say_what_is_so(bench: Bench) -> None:
    assert "not running" in bench("cloud", "status").out
    assert bench("cloud", "status", "--json").document == {"schema": 1, "running": False, "instances": []}
    assert "not running" in bench("cloud", "stop").out
    assert "no VM can be preempted" in bench("cloud", "preempt", "some-vm", code=10).err
    assert "the embedded cloud is running" in bench("cloud", "start").out
    assert bench("cloud", "start", "--json").document["bucket"]
    assert "0 VMs alive" in bench("cloud", "status").out
    assert "0 VMs, $0" in bench("cloud", "bill").out
    assert bench("cloud", "bill", "--json").document["rows"] == []
    assert "0 faults" in bench("cloud", "weather").out
    Path("odd.yaml").write_text("faults: [{fault: locusts}]\n")
    assert "locusts" in bench("cloud", "weather", "odd.yaml", code=2).err
    assert bench("cloud", "stop", "--json").document["stopped"] is True


def test_weather_and_start_are_for_the_embedded_cloud_only(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_PROJECT", "some-project-1")
    monkeypatch.setenv("BENCH_BUCKET", "some-bucket")
    assert "a Google project is configured" in bench("cloud", "start", code=2).err
    assert "a Google project is configured" in bench("cloud", "weather", code=2).err


def test_the_version_and_the_help_are_there(bench: Bench) -> None:
    assert bench("--version").out.startswith("bench ")
    assert "launch" in bench("--help").out

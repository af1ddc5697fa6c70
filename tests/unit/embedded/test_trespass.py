"""What another user of this machine, and a web page in a browser on it, can do to the embedded cloud: nothing.

The attackers here speak through `http.client` and sockets alone, and are judged by what is to be seen on the disk.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.embedded import client
from orchestrator.embedded.supervisor import list_descendants
from tests.support.patience import PATIENCE_S
from tests.unit.embedded.builders import ZONE, insert_body

NOBODY = 65534
as_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="only root can become another user"
)
INSERT = f"/compute/v1/projects/bench-embedded/zones/{ZONE}/instances"
GLOBAL = "/compute/v1/projects/bench-embedded/global"
BATCH_JOB = json.dumps({"taskGroups": [{"taskSpec": {"runnables": [{"script": {"text": "touch /tmp/planted"}}]}}]})
UPLOAD = "/upload/storage/v1/b/bench-embedded/o?uploadType=media&name=planted"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[client.CloudAddress]:
    """A daemon, made under an umask that hides nothing, with a VM that stays."""
    home: Path = tmp_path_factory.mktemp("trespass") / "bench" / "cloud"
    before = os.umask(0)
    try:
        found = client.ensure_running(home)
    finally:
        os.umask(before)
    body = insert_body("bench-stays-1")
    body["metadata"]["items"] = [
        {"key": "startup-script", "value": '#!/bin/bash\necho "metadata=$GCE_METADATA_HOST"\nexec sleep 1000\n'}
    ]
    status, answer = ask(found.compute, "POST", INSERT, json.dumps(body), mine(found))
    assert status == 200, answer
    yield found
    client.stop_cloud(home)


@pytest.fixture(scope="module")
def metadata(address: client.CloudAddress) -> str:
    """Where the VM's metadata server listens."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        _, said = ask(address.compute, "GET", f"{INSERT}/bench-stays-1/serialPort", None, mine(address))
        if b"metadata=" in said:
            return "http://" + json.loads(said)["contents"].partition("metadata=")[2].split()[0]
        time.sleep(0.05)
    raise AssertionError("the VM says nothing")


@pytest.fixture
def home(address: client.CloudAddress) -> Path:
    return Path(f"/proc/{address.pid}/cwd").readlink()


def mine(address: client.CloudAddress) -> dict[str, str]:
    return {"Authorization": f"Bearer {address.token}", "Content-Type": "application/json"}


def ask(base: str, method: str, target: str, body: Any = None, headers: Any = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(base.removeprefix("http://"), timeout=600)
    try:
        connection.request(method, target, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def ports_of(pids: list[int]) -> set[int]:
    """Every TCP port on which one of these processes listens, from the kernel's tables."""
    inodes = set()
    for pid in pids:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            try:
                inodes.add(str(entry.readlink()))
            except OSError:
                continue
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            cells = line.split()
            if cells[3] == "0A" and f"socket:[{cells[9]}]" in inodes:
                found.add(int(cells[1].rpartition(":")[2], 16))
    return found


def attacks(address: client.CloudAddress) -> list[tuple[str, str, Any]]:
    """What somebody would try at a port: method, target, body."""
    owned = json.dumps(insert_body("bench-owned-1"))
    return [
        ("POST", INSERT, owned),
        ("POST", UPLOAD, "planted"),
        ("GET", f"/storage/v1/b/{address.bucket}/o", None),
        ("GET", "/storage/v1/b?project=bench-embedded", None),
        ("DELETE", f"{INSERT}/bench-stays-1", None),
        ("GET", "/control/status", None),
        ("POST", "/control/weather", '{"faults": []}'),
        ("POST", "/control/stop", "{}"),
        ("GET", "/v1/services", None),
        ("GET", "/v1/services/6F81-5844-456A/skus", None),
        ("POST", "/v1/projects/bench-embedded/services:batchEnable", '{"serviceIds": ["compute.googleapis.com"]}'),
        ("POST", "/v1/projects/bench-embedded:setIamPolicy", '{"policy": {"bindings": []}}'),
        ("GET", "/v1/projects/bench-embedded/serviceAccounts", None),
        ("POST", "/v1/projects/bench-embedded/locations/us-central1/jobs?job_id=planted", BATCH_JOB),
        ("GET", "/v1/projects/bench-embedded/locations/us-central1/jobs", None),
        ("DELETE", "/v1/projects/bench-embedded/locations/us-central1/jobs/planted", None),
        ("POST", f"{GLOBAL}/instanceTemplates", '{"name": "planted", "properties": {"machineType": "e2-micro"}}'),
        ("GET", f"{GLOBAL}/instanceTemplates", None),
        ("DELETE", f"{GLOBAL}/instanceTemplates/planted", None),
        ("POST", f"{GLOBAL}/images", '{"name": "planted", "sourceDisk": "zones/us-central1-a/disks/bench-stays-1"}'),
        ("GET", f"{GLOBAL}/images", None),
        ("DELETE", f"{GLOBAL}/images/planted", None),
        ("GET", f"/compute/v1/projects/bench-embedded/zones/{ZONE}/operations", None),
        ("POST", f"{INSERT}/bench-stays-1/stop", ""),
        ("POST", f"{INSERT}/bench-stays-1/setMetadata", '{"items": []}'),
        ("GET", "/computeMetadata/v1/instance/service-accounts/default/token", None),
        ("POST", "/batch/storage/v1", "x"),
        ("PUT", "/bench-embedded/planted", "planted"),
        ("OPTIONS", INSERT, None),
    ]


def unharmed(address: client.CloudAddress) -> bool:
    """The cloud is up, has the one VM, and its bucket has nothing of anybody else's."""
    _, listed = ask(address.storage, "GET", f"/storage/v1/b/{address.bucket}/o", None, mine(address))
    status = client.ask_control(address, "/control/status")
    return [vm["name"] for vm in status["instances"]] == ["bench-stays-1"] and b"planted" not in listed


def test_no_port_of_the_daemon_or_of_its_children_does_anything_for_who_has_no_token(
    address: client.CloudAddress, metadata: str
) -> None:
    ports = ports_of([address.pid, *list_descendants(address.pid)])
    known = {int(url.rpartition(":")[2]) for url in (address.compute, address.storage, address.control, metadata)}
    assert known <= ports
    for port in sorted(ports):
        for method, target, body in attacks(address):
            for headers in ({}, {"Authorization": "Bearer embedded-42"}, {"Content-Type": "application/json"}):
                status, said = ask(f"http://127.0.0.1:{port}", method, target, body, headers)
                assert status >= 400, (port, method, target, said)
    assert unharmed(address)


PROBE = """
import http.client, json, sys
for base, method, target, body, headers in json.load(sys.stdin):
    connection = http.client.HTTPConnection(base, timeout=600)
    try:
        connection.request(method, target, body, headers)
        answer = connection.getresponse()
        print(json.dumps([answer.status, answer.read().decode("utf-8", "replace")]))
    except (OSError, http.client.HTTPException) as error:
        print(json.dumps([0, repr(error)]))
    connection.close()
"""


def as_nobody(requests: list[Any]) -> list[tuple[int, str]]:
    command = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", sys.executable, "-I", "-c", PROBE]
    done = subprocess.run(command, input=json.dumps(requests), capture_output=True, text=True, timeout=600, cwd="/")
    if done.returncode:
        pytest.skip(f"nobody cannot run this python: {done.stderr[-200:]}")
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


@as_root
def test_another_user_is_refused_even_with_the_token_at_every_port(address: client.CloudAddress, metadata: str) -> None:
    ports = sorted(ports_of([address.pid, *list_descendants(address.pid)]))
    headers = mine(address) | {"Metadata-Flavor": "Google"}
    tries = [
        (f"127.0.0.1:{port}", method, target, body, headers)
        for port in ports
        for method, target, body in attacks(address)
    ]
    answers = as_nobody(tries)
    assert len(answers) == len(tries)
    for attempt, (status, said) in zip(tries, answers, strict=True):
        assert status == 0 or status >= 400, (attempt[:3], said)
        assert "access_token" not in said
    assert unharmed(address)


@as_root
def test_another_user_can_read_nothing_of_what_the_cloud_keeps(address: client.CloudAddress, home: Path) -> None:
    command = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "find", str(home)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd="/")
    assert str(home / "token") not in done.stdout
    assert done.returncode != 0


def test_folders_are_0700_and_files_0600_whatever_the_umask(address: client.CloudAddress, home: Path) -> None:
    ask(address.storage, "POST", UPLOAD.replace("planted", "mine"), "mine", mine(address))
    seen = 0
    for path in [home, *home.rglob("*")]:
        if "vms" in path.parts:
            continue  # a VM's own files lie in the VM's own folder
        mode = stat.S_IMODE(path.lstat().st_mode)
        assert mode & 0o077 == 0, (path, oct(mode))
        seen += 1
    assert seen > 6
    assert stat.S_IMODE((home / "vms").stat().st_mode) == 0o700
    assert stat.S_IMODE((home / "token").stat().st_mode) == 0o600


Forged = Callable[[client.CloudAddress], dict[str, str]]
PAGES: dict[str, Forged] = {
    "another host": lambda _: {"Host": "evil.example"},
    "another host, our port": lambda address: {"Host": f"evil.example:{address.compute.rpartition(':')[2]}"},
    "our host, another port": lambda _: {"Host": "127.0.0.1:80"},
    "our name in another": lambda _: {"Host": "127.0.0.1.evil.example"},
    "another origin": lambda _: {"Origin": "https://evil.example"},
    "an origin on loopback": lambda address: {"Origin": address.compute},
    "no origin at all": lambda _: {"Origin": "null"},
    "a page's fetch": lambda _: {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "no-cors"},
}


@pytest.mark.parametrize("page", PAGES)
def test_a_web_page_is_refused_even_with_the_token(address: client.CloudAddress, metadata: str, page: str) -> None:
    for base in (address.compute, address.storage, address.control, metadata):
        for method, target, body in attacks(address):
            if method == "OPTIONS":
                continue
            headers = mine(address) | {"Metadata-Flavor": "Google"} | PAGES[page](address)
            status, said = ask(base, method, target, body, headers)
            assert status == 403, (base, method, target, said)
    assert unharmed(address)


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_a_body_that_a_page_could_send_without_asking_is_not_taken_for_json(
    address: client.CloudAddress, kind: str
) -> None:
    for base, target, body in (
        (address.compute, INSERT, json.dumps(insert_body("bench-owned-1"))),
        (address.control, "/control/weather", '{"faults": []}'),
        (address.control, "/control/stop", "{}"),
    ):
        headers = {"Authorization": f"Bearer {address.token}"} | ({"Content-Type": kind} if kind else {})
        assert ask(base, "POST", target, body, headers)[0] == 415
    assert unharmed(address)


def test_the_token_of_a_vm_opens_no_control_and_is_not_to_be_guessed(
    address: client.CloudAddress, metadata: str
) -> None:
    token = "/computeMetadata/v1/instance/service-accounts/default/token"
    status, said = ask(metadata, "GET", token, None, {"Metadata-Flavor": "Google"})
    assert status == 200
    token = json.loads(said)["access_token"]
    assert len(token) > 40
    vm = {"Authorization": f"Bearer {token}"}
    assert ask(address.storage, "GET", f"/storage/v1/b/{address.bucket}/o", None, vm)[0] == 200
    assert ask(address.compute, "GET", f"{INSERT}/bench-stays-1", None, vm)[0] == 200
    assert ask(address.control, "GET", "/control/status", None, vm)[0] == 401


def test_a_new_cloud_has_a_new_token_and_who_asks_with_the_old_one_is_told(tmp_path: Path) -> None:
    from dataclasses import replace

    first = client.ensure_running(tmp_path)
    try:
        assert first.token == (tmp_path / "token").read_text()
        assert first.token not in repr(first)
        assert first.token not in (tmp_path / "cloud.json").read_text()
        with pytest.raises(client.CloudUnavailable, match="refuses this user"):
            client.ask_control(replace(first, token="embedded-old"), "/control/status")
    finally:
        client.stop_cloud(tmp_path)
    second = client.ensure_running(tmp_path)
    client.stop_cloud(tmp_path)
    assert second.token != first.token


def test_endless_bodies_are_refused_before_they_fill_the_memory(address: client.CloudAddress) -> None:
    for headers in ({"Content-Length": str(1 << 40)}, {"Content-Length": "-1"}):
        connection = http.client.HTTPConnection(address.compute.removeprefix("http://"), timeout=600)
        connection.putrequest("POST", INSERT)
        for name, value in (mine(address) | headers).items():
            connection.putheader(name, value)
        connection.endheaders()
        assert connection.getresponse().status == 413
        connection.close()

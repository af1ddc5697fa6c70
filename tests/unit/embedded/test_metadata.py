"""The metadata server answers a VM as Google's does, and nobody else."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from orchestrator.embedded.guest import Console, Guest
from orchestrator.embedded.metadata import MetadataServer
from tests.support.simulated_timeline import SimulatedTimeline

FLAVOR = {"Metadata-Flavor": "Google"}


def guest(scratch: Path, service_account: str | None = "vm@bench.example") -> Guest:
    return Guest(
        id="42",
        name="bench-r1-1",
        zone="us-central1-a",
        project="bench-embedded",
        project_number="123",
        machine_type="g2-standard-4",
        image="projects/images/global/images/common-cu129-v20261101",
        metadata={"bench-run": '{"run_id": "r1"}', "startup-script": "#!/bin/bash\n"},
        labels={},
        service_account=service_account,
        scopes=("https://www.googleapis.com/auth/cloud-platform",),
        spot=True,
        console=Console(),
        timeline=SimulatedTimeline(),
        scratch=scratch,
        compute_url="",
        storage_url="",
    )


@pytest.fixture
def server(tmp_path: Path) -> Iterator[MetadataServer]:
    made = MetadataServer(guest(tmp_path))
    yield made
    made.close()


def ask(server: MetadataServer, path: str, headers: dict[str, str] | None = None, **query: str) -> requests.Response:
    return requests.get(
        f"http://{server.host}/computeMetadata/v1/{path}",
        headers=FLAVOR if headers is None else headers,
        params=query,
        timeout=600,
    )


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("instance/id", "42"),
        ("instance/name", "bench-r1-1"),
        ("instance/zone", "projects/123/zones/us-central1-a"),
        ("instance/machine-type", "projects/123/machineTypes/embedded"),
        ("instance/image", ""),
        ("instance/preempted", "FALSE"),
        ("instance/attributes/bench-run", '{"run_id": "r1"}'),
        ("instance/attributes/", "bench-run\nstartup-script\n"),
        ("instance/service-accounts/", "default/\nvm@bench.example/\n"),
        ("instance/service-accounts/default/scopes", "https://www.googleapis.com/auth/cloud-platform\n"),
        ("instance/scheduling/preemptible", "TRUE"),
        ("project/project-id", "bench-embedded"),
        ("universe/universe-domain", "googleapis.com"),
    ],
)
def test_every_key_has_its_value(server: MetadataServer, path: str, text: str) -> None:
    answer = ask(server, path)
    assert (answer.status_code, answer.text) == (200, text)
    assert answer.headers["Metadata-Flavor"] == "Google"
    assert answer.headers["ETag"]


def test_who_does_not_say_the_word_or_comes_through_a_proxy_is_turned_away(server: MetadataServer) -> None:
    assert ask(server, "instance/name", {}).status_code == 403
    assert ask(server, "instance/name", {"Metadata-Flavor": "Other"}).status_code == 403
    assert ask(server, "instance/name", FLAVOR | {"X-Forwarded-For": "10.0.0.1"}).status_code == 403


def test_a_ping_needs_no_word_and_is_answered_by_it(server: MetadataServer) -> None:
    assert requests.get(f"http://{server.host}/", timeout=600).headers["Metadata-Flavor"] == "Google"


def test_what_is_not_there_is_not_found_and_nothing_can_be_written(server: MetadataServer) -> None:
    assert ask(server, "instance/attributes/bench-endpoints").status_code == 404
    assert ask(server, "instance/name/deeper").status_code == 404
    assert requests.get(f"http://{server.host}/elsewhere", headers=FLAVOR, timeout=600).status_code == 404
    assert requests.put(f"http://{server.host}/computeMetadata/v1/x", headers=FLAVOR, timeout=600).status_code == 405


def test_a_whole_directory_comes_as_json_with_its_names_in_camel_case(server: MetadataServer) -> None:
    document = ask(server, "instance/", recursive="true").json()
    assert document["machineType"].endswith("machineTypes/embedded")
    assert document["serviceAccounts"]["default"]["email"] == "vm@bench.example"
    assert document["attributes"]["bench-run"] == '{"run_id": "r1"}'
    assert ask(server, "instance/name", alt="json").json() == "bench-r1-1"
    assert ask(server, "instance/attributes/", recursive="true", alt="text").text == "bench-run\nstartup-script\n"


@pytest.mark.parametrize("account", ["default", "vm@bench.example"])
def test_the_token_is_the_vms_own(server: MetadataServer, account: str) -> None:
    token = ask(server, f"instance/service-accounts/{account}/token").json()
    assert token == {"access_token": server.guest.token, "expires_in": 3599, "token_type": "Bearer"}
    assert ask(server, "instance/service-accounts/other/token").status_code == 404


def test_a_vm_without_a_service_account_has_no_token(tmp_path: Path) -> None:
    server = MetadataServer(guest(tmp_path, service_account=None))
    try:
        assert ask(server, "instance/service-accounts/default/token").status_code == 404
    finally:
        server.close()


def test_who_waits_for_a_preemption_hears_of_it_at_once(server: MetadataServer) -> None:
    heard: list[str] = []
    etag = ask(server, "instance/preempted").headers["ETag"]

    def wait(last_etag: str) -> None:
        answer = ask(server, "instance/preempted", wait_for_change="true", timeout_sec="3600", last_etag=last_etag)
        heard.append(answer.text)

    threads = [threading.Thread(target=wait, args=(etag,)), threading.Thread(target=wait, args=("",))]
    for thread in threads:
        thread.start()
    threads[0].join(0.05)
    assert heard == []
    server.guest.announce_preemption()
    for thread in threads:
        thread.join(600)
    assert heard == ["TRUE", "TRUE"]
    assert ask(server, "instance/preempted", wait_for_change="true", last_etag=etag).text == "TRUE"


def test_who_waits_in_vain_gets_the_old_value(server: MetadataServer) -> None:
    assert ask(server, "instance/preempted", wait_for_change="true", timeout_sec="0.01").text == "FALSE"


def test_who_waits_when_the_vm_ends_does_not_wait_on(server: MetadataServer) -> None:
    ended: list[bool] = []

    def wait() -> None:
        try:
            ask(server, "instance/preempted", wait_for_change="true", timeout_sec="3600")
        except requests.ConnectionError:
            pass
        ended.append(True)

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join(0.05)
    server.close()
    thread.join(600)
    assert ended == [True]

"""The real google-cloud-compute clients against the embedded cloud, every exchange judged by Google's own document."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import compute_v1
from google.oauth2.credentials import Credentials
from google.protobuf.json_format import ParseDict

from orchestrator.embedded.server import EmbeddedCloud
from tests.support.discovery import Discovery, Recorder
from tests.support.gcloud_forks import GcloudForks
from tests.unit.embedded.builders import RUN, ZONE, Stage, insert_body, t4_body

NAME = f"bench-{RUN}-1"
IMAGES = "deeplearning-platform-release"
FAMILY = "common-cu129-ubuntu-2404-nvidia-580"


class Google:
    """Google's clients, pointed at the embedded cloud."""

    def __init__(self, stage: Stage) -> None:
        self.options = {"api_endpoint": stage.cloud.compute_url}
        self.project = stage.cloud.project
        self.credentials = Credentials(stage.cloud.token)  # type: ignore[no-untyped-call, unused-ignore]

    def client(self, kind: Any) -> Any:
        return kind(credentials=self.credentials, client_options=self.options)

    @property
    def instances(self) -> Any:
        return self.client(compute_v1.InstancesClient)

    @property
    def operations(self) -> Any:
        return self.client(compute_v1.ZoneOperationsClient)

    def insert(self, body: dict[str, Any], **more: Any) -> Any:
        resource = compute_v1.Instance()
        ParseDict(snake(body), type(resource).pb(resource))
        request = {"project": self.project, "zone": ZONE, "instance_resource": resource, **more}
        return self.instances.insert_unary(request=request)

    def done(self, operation: Any) -> Any:
        """The operation, once it is done."""
        done = self.operations.wait(project=self.project, zone=ZONE, operation=operation.name)
        assert compute_v1.Operation.Status(done.status).name == "DONE"
        return done


def snake(value: Any) -> Any:
    """The proto JSON parser takes camelCase but for some odd names; numbers in strings it takes as they are."""
    return json.loads(json.dumps(value))


@pytest.fixture
def stage(tmp_path: Path, recorder: Recorder) -> Iterator[Stage]:
    with Stage(tmp_path, observer=recorder) as made:
        yield made
    recorder.assert_all_valid()


@pytest.fixture
def google(stage: Stage) -> Google:
    return Google(stage)


def test_a_life_from_insert_to_delete_is_valid_in_every_word(google: Google, stage: Stage, recorder: Recorder) -> None:
    request = str(uuid.uuid4())
    operation = google.insert(insert_body(), request_id=request)
    assert google.insert(insert_body(), request_id=request).name == operation.name
    done = google.done(operation)
    assert (done.client_operation_id, done.operation_type) == (request, "insert")
    instance = google.instances.get(project=google.project, zone=ZONE, instance=NAME)
    assert instance.status == "RUNNING"
    assert instance.id == done.target_id > 0
    assert instance.scheduling.max_run_duration.seconds == 1800
    assert instance.scheduling.instance_termination_action == "DELETE"
    assert instance.resource_status.scheduling.termination_timestamp
    stage.advance(40)
    output = google.instances.get_serial_port_output(
        request={"project": google.project, "zone": ZONE, "instance": NAME, "start": 0}
    )
    assert output.contents == "idle\n"
    assert output.next_ == 5
    labels = compute_v1.InstancesSetLabelsRequest(labels={"a": "b"}, label_fingerprint=instance.label_fingerprint)
    arguments = {
        "project": google.project,
        "zone": ZONE,
        "instance": NAME,
        "instances_set_labels_request_resource": labels,
    }
    google.done(google.instances.set_labels_unary(request=arguments))
    with pytest.raises(exceptions.PreconditionFailed):
        google.instances.set_labels_unary(request=arguments)
    google.done(google.instances.delete_unary(project=google.project, zone=ZONE, instance=NAME))
    with pytest.raises(exceptions.NotFound):
        google.instances.get(project=google.project, zone=ZONE, instance=NAME)
    assert recorder.methods["compute.instances.insert"] == 2
    assert recorder.refused == {404: 1, 412: 1}


def test_a_duplicate_is_a_conflict_and_a_bad_request_is_one(google: Google, stage: Stage) -> None:
    google.insert(insert_body())
    with pytest.raises(exceptions.Conflict) as conflict:
        google.insert(insert_body())
    assert conflict.value.errors[0]["reason"] == "alreadyExists"
    with pytest.raises(exceptions.BadRequest):
        google.insert(insert_body(machine="g2-standard-5"))


def test_a_stockout_reads_as_googles(google: Google, stage: Stage) -> None:
    stage.cloud.weather.add({"fault": "stockout", "zones_available": ["us-central1-b"]})
    done = google.done(google.insert(t4_body()))
    assert (done.http_error_status_code, done.http_error_message) == (503, "SERVICE UNAVAILABLE")
    (error,) = done.error.errors
    assert error.code == "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"
    (info,) = [detail.error_info for detail in error.error_details if detail.error_info.reason]
    assert info.metadatas["zonesAvailable"] == "us-central1-b"


def test_an_exceeded_quota_reads_as_googles(google: Google, stage: Stage) -> None:
    stage.cloud.weather.add({"fault": "quota", "metric": "GPUS_ALL_REGIONS", "global": True})
    done = google.done(google.insert(insert_body()))
    (error,) = done.error.errors
    assert error.code == "QUOTA_EXCEEDED"
    assert error.error_details[0].quota_info.limit_name == "GPUS-ALL-REGIONS-per-project"


def test_a_preemption_is_found_in_the_operation_log(google: Google, stage: Stage) -> None:
    google.done(google.insert(insert_body()))
    instance = google.instances.get(project=google.project, zone=ZONE, instance=NAME)
    stage.cloud.preempt(NAME, 0)
    wanted = f'operationType="compute.instances.preempted" AND targetId={instance.id}'
    (operation,) = google.operations.list(request={"project": google.project, "zone": ZONE, "filter": wanted})
    assert operation.status_message == "Instance was preempted."
    assert google.operations.get(project=google.project, zone=ZONE, operation=operation.name).id == operation.id


def test_instances_are_listed_page_by_page_in_a_zone_and_everywhere(google: Google, stage: Stage) -> None:
    for number in range(5):
        google.insert(insert_body(f"bench-r{number}-1"))
    request = {"project": google.project, "filter": "labels.bench-tool=spotbench", "max_results": 2}
    here = google.instances.list(request=request | {"zone": ZONE})
    assert [instance.name for instance in here] == [f"bench-r{number}-1" for number in range(5)]
    everywhere = google.instances.aggregated_list(request=request)
    assert sum(len(scope.instances) for _, scope in everywhere) == 5


def test_everything_that_stands_there_is_valid(google: Google, stage: Stage, recorder: Recorder) -> None:
    project = google.project
    assert google.client(compute_v1.ProjectsClient).get(project=project).quotas[0].metric == "GPUS_ALL_REGIONS"
    zones = list(google.client(compute_v1.ZonesClient).list(project=project))
    assert google.client(compute_v1.ZonesClient).get(project=project, zone=ZONE) in zones
    regions = google.client(compute_v1.RegionsClient)
    assert list(regions.list(project=project))
    assert regions.get(project=project, region="us-central1").quotas
    machines = google.client(compute_v1.MachineTypesClient)
    assert list(machines.list(project=project, zone=ZONE))
    assert list(machines.aggregated_list(project=project))
    assert machines.get(project=project, zone=ZONE, machine_type="g2-standard-4").guest_cpus == 4
    accelerators = google.client(compute_v1.AcceleratorTypesClient)
    assert list(accelerators.list(project=project, zone=ZONE))
    assert list(accelerators.aggregated_list(project=project))
    assert accelerators.get(project=project, zone=ZONE, accelerator_type="nvidia-l4").name == "nvidia-l4"
    images = google.client(compute_v1.ImagesClient)
    image = images.get_from_family(project=IMAGES, family=FAMILY)
    assert images.get(project=IMAGES, image=image.name).disk_size_gb == 50
    with pytest.raises(exceptions.NotFound):
        images.get_from_family(project=IMAGES, family="pytorch-latest-gpu")
    networks = google.client(compute_v1.NetworksClient)
    assert [network.name for network in networks.list(project=project)] == ["default"]
    assert networks.get(project=project, network="default").auto_create_subnetworks
    google.done(google.insert(insert_body()))
    disks = google.client(compute_v1.DisksClient)
    assert [disk.size_gb for disk in disks.list(project=project, zone=ZONE)] == [60]
    assert list(disks.aggregated_list(project=project))
    assert disks.get(project=project, zone=ZONE, disk=NAME).users
    place = {"project": project, "region": "us-central1"}
    assert list(google.client(compute_v1.SubnetworksClient).list(**place))
    assert list(google.client(compute_v1.RoutersClient).list(**place))
    disk_types = google.client(compute_v1.DiskTypesClient)
    assert list(disk_types.list(project=project, zone=ZONE))
    assert dict(disk_types.aggregated_list(project=project))[f"zones/{ZONE}"].disk_types
    assert len(recorder.methods) >= 20


def test_faults_on_the_wire_become_the_clients_own_exceptions(google: Google, stage: Stage) -> None:
    for status, kind in (
        (403, exceptions.Forbidden),
        (429, exceptions.TooManyRequests),
        (500, exceptions.InternalServerError),
    ):
        stage.cloud.weather.add({"fault": "http", "service": "compute", "status": status})
        with pytest.raises(kind):
            google.insert(insert_body())
    with pytest.raises(exceptions.MethodNotImplemented):
        google.client(compute_v1.AdviceClient).capacity(
            project=google.project,
            region="us-central1",
            capacity_advice_request_resource=compute_v1.CapacityAdviceRequest(),
        )


# The judge itself


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"name": "Bad"}, "name"),
        ({"status": "RUNNING"}, "output only"),
        ({"imaginary": 1}, "unknown field"),
        ({"scheduling": {"provisioningModel": "SPOTTY"}}, "enum"),
        ({"scheduling": {"maxRunDuration": {"seconds": 30}}}, "not a string"),
        ({"scheduling": {"maxRunDuration": {"seconds": "soon"}}}, "decimal"),
        ({"scheduling": []}, "not an object"),
        ({"disks": {}}, "not an array"),
        ({"canIpForward": "yes"}, "not a boolean"),
        ({"fingerprint": "*"}, "base64"),
        ({"guestAccelerators": [{"acceleratorCount": "1"}]}, "not an integer"),
        ({"labels": {"a": 1}}, "not a string"),
    ],
)
def test_the_judge_finds_what_is_wrong_with_a_request(change: dict[str, Any], word: str) -> None:
    judge = Discovery.load()
    path = f"/compute/v1/projects/bench-embedded/zones/{ZONE}/instances"
    assert judge.problems_of_request("POST", path, {"requestId": str(uuid.uuid4())}, insert_body()) == []
    (problem,) = judge.problems_of_request("POST", path, {}, insert_body() | change)
    assert word in problem


@pytest.mark.parametrize(
    ("method", "path", "query", "body", "word"),
    [
        ("GET", "/storage/v1/b", {}, None, "no such method"),
        ("GET", "/compute/v1/projects/bench-embedded/moons", {}, None, "no such method"),
        ("GET", "/compute/v1/projects/bench-embedded/zones", {"colour": "red"}, None, "unknown parameter"),
        ("GET", "/compute/v1/projects/bench-embedded/zones", {"maxResults": "x"}, None, "not a number"),
        (
            "GET",
            "/compute/v1/projects/bench-embedded/aggregated/instances",
            {"includeAllScopes": "x"},
            None,
            "not a boolean",
        ),
        ("GET", "/compute/v1/projects/bench-embedded/zones", {}, {}, "takes no body"),
        ("GET", "/compute/v1/projects/P!/zones", {}, None, "is not"),
        ("POST", "/compute/v1/projects/bench-embedded/zones/z/instances", {}, None, "a body is required"),
    ],
)
def test_the_judge_finds_what_is_wrong_with_a_call(
    method: str, path: str, query: dict[str, str], body: Any, word: str
) -> None:
    problems = Discovery.load().problems_of_request(method, path, query, body)
    assert any(word in problem for problem in problems), problems


def test_the_judge_finds_what_is_wrong_with_an_answer() -> None:
    judge = Discovery.load()
    path = f"/compute/v1/projects/bench-embedded/zones/{ZONE}/operations/o"
    good = {"name": "o", "status": "DONE", "id": "1", "progress": 100}
    assert judge.problems_of_response("GET", path, 200, good) == []
    for bad in (
        {"id": "52389bbb"},
        {"status": "FINISHED"},
        {"progress": "100"},
        {"progress": 2**40},
        {"colour": "red"},
    ):
        assert len(judge.problems_of_response("GET", path, 200, good | bad)) == 1
    assert judge.problems_of_response("GET", "/elsewhere", 200, {})
    incomplete = {"error": {"code": 404, "message": "m", "errors": [{}]}}
    documents: list[Any] = [{}, [], {"error": {"code": 500, "message": "m"}}, incomplete]
    for document in documents:
        assert judge.problems_of_response("GET", path, 404, document)


def test_a_recorder_that_has_seen_nothing_or_something_wrong_does_not_pass() -> None:
    recorder = Recorder()
    with pytest.raises(AssertionError, match="nothing"):
        recorder.assert_all_valid()
    recorder("GET", "/compute/v1/projects/bench-embedded/zones", {"colour": "red"}, None, 200, {"kind": "x"})
    with pytest.raises(AssertionError, match="colour"):
        recorder.assert_all_valid()


# Google's own command line, where it is installed, takes the embedded cloud for Compute Engine.


PAGE = Path(__file__).parents[3] / "docs" / "embedded-cloud.md"
SERVICES = """
import sys
from orchestrator.adapters.google.compute_library import CLIENTS, PACKAGE, compute_v1
loaded = lambda: {name.split(".")[4] for name in sys.modules if name.startswith(f"{PACKAGE}.services.")}
assert loaded() == set(CLIENTS), loaded()
names = (*CLIENTS.values(), *compute_v1.types.compute.__all__)
before = [getattr(compute_v1, name) for name in names]
from google.cloud import compute_v1 as whole
assert loaded() == set(CLIENTS)
assert whole.DisksClient.__name__ == "DisksClient"
assert len(loaded()) > 90
assert [getattr(whole, name) for name in names] == before
"""


def test_the_services_that_are_asked_load_alone_and_are_those_of_the_whole_package() -> None:
    subprocess.run([sys.executable, "-c", SERVICES], check=True)


WRITTEN = [line.split()[1:] for line in PAGE.read_text("utf-8").splitlines() if line.startswith("gcloud ")]
ANSWERS = {"instances create": "RUNNING", "instances list": "vm1\tRUNNING", "storage cat": "hello", "zones list": "UP"}


@pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not installed")
def test_every_command_of_gcloud_that_is_documented_works(tmp_path: Path) -> None:
    assert len(WRITTEN) == 20
    recorder = Recorder()
    source = tmp_path / "file"
    source.write_text("hello")
    with EmbeddedCloud(tmp_path / "cloud", observer=recorder) as cloud:
        environment = os.environ | {
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": f"{cloud.compute_url}/compute/v1/",
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE": f"{cloud.storage_url}/storage/v1/",
            "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE": str(tmp_path / "cloud" / "token"),
            "CLOUDSDK_CONFIG": str(tmp_path / "config"),
            "CLOUDSDK_CORE_CHECK_GCE_METADATA": "false",
            "CLOUDSDK_CORE_PROJECT": cloud.project,
        }
        with GcloudForks(environment) as gcloud:
            for words in WRITTEN:
                done = gcloud.run([str(source) if word == "FILE" else word for word in words])
                assert done.returncode == 0, (words, done.stderr)
                shown = next((text for verb, text in ANSWERS.items() if verb in " ".join(words)), "")
                assert shown in done.stdout, words
        assert cloud.instances() == []
        assert cloud.bill().rows[-1].ended_by == "client"
    assert recorder.methods["compute.instances.insert"] == 1
    # gcloud itself sends queries that the document does not have, and writes a boolean as Python does.
    assert [problem for problem in recorder.problems if "?" not in problem] == []

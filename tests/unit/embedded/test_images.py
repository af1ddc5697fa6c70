"""Images of the project's own, asked for by Google's own client and judged by Google's own document."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import compute_v1

from tests.integration.embedded.test_google_clients import Google
from tests.support.discovery import Recorder
from tests.unit.embedded.builders import RUN, ZONE, Stage, insert_body

NAME = f"bench-{RUN}-1"


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    recorder = Recorder()
    with Stage(tmp_path, observer=recorder) as made:
        yield made
    recorder.assert_all_valid()


def seal(stage: Stage, name: str = "bench-image-l4-1", disk: str = NAME, *, force: bool = True) -> Any:
    google = Google(stage)
    image = compute_v1.Image(
        name=name,
        family="bench-image-l4",
        source_disk=f"projects/{google.project}/zones/{ZONE}/disks/{disk}",
        labels={"bench-tool": "spotbench", "bench-run": RUN},
    )
    return google.client(compute_v1.ImagesClient).insert_unary(
        request={"project": google.project, "image_resource": image, "force_create": force}
    )


def image(stage: Stage, name: str = "bench-image-l4-1") -> Any:
    google = Google(stage)
    return google.client(compute_v1.ImagesClient).get(project=google.project, image=name)


def test_an_image_is_made_from_a_living_machines_disk_and_machines_boot_from_it(stage: Stage) -> None:
    stage.run_vm()
    operation = seal(stage)
    assert image(stage).status == "PENDING"
    stage.advance(120)
    done = (
        Google(stage)
        .client(compute_v1.GlobalOperationsClient)
        .wait(project=stage.cloud.project, operation=operation.name)
    )
    assert compute_v1.Operation.Status(done.status).name == "DONE"
    made = image(stage)
    assert (made.status, made.disk_size_gb, dict(made.labels)["bench-run"]) == ("READY", 60, RUN)
    disks = insert_body("bench-on-it-1")["disks"]
    disks[0]["initializeParams"]["sourceImage"] = f"projects/{stage.cloud.project}/global/images/{made.name}"
    name = stage.run_vm(insert_body("bench-on-it-1", disks=disks))
    assert stage.rest.instance(name)["status"] == "RUNNING"


def test_the_newest_of_a_family_is_the_one_that_is_ready_and_not_deprecated(stage: Stage) -> None:
    google = Google(stage)
    images = google.client(compute_v1.ImagesClient)
    stage.run_vm()
    seal(stage, "bench-image-l4-1")
    stage.advance(120)
    seal(stage, "bench-image-l4-2")
    newest = images.get_from_family(project=google.project, family="bench-image-l4")
    assert newest.name == "bench-image-l4-1"
    stage.advance(120)
    assert images.get_from_family(project=google.project, family="bench-image-l4").name == "bench-image-l4-2"
    status = compute_v1.DeprecationStatus(state="DEPRECATED")
    for name in ("bench-image-l4-1", "bench-image-l4-2"):
        images.deprecate_unary(project=google.project, image=name, deprecation_status_resource=status)
    with pytest.raises(exceptions.NotFound):
        images.get_from_family(project=google.project, family="bench-image-l4")
    listed = images.list(request={"project": google.project, "filter": "labels.bench-tool=spotbench"})
    assert [(one.name, one.deprecated.state) for one in listed] == [
        ("bench-image-l4-1", "DEPRECATED"), ("bench-image-l4-2", "DEPRECATED")
    ]  # fmt: skip
    images.delete_unary(project=google.project, image="bench-image-l4-1")
    with pytest.raises(exceptions.NotFound):
        image(stage)


def test_a_disk_in_use_is_copied_only_by_force_and_one_that_is_not_there_not_at_all(stage: Stage) -> None:
    stage.run_vm()
    with pytest.raises(exceptions.BadRequest, match="already being used"):
        seal(stage, force=False)
    with pytest.raises(exceptions.NotFound, match="disks/nothing"):
        seal(stage, disk="nothing")
    with pytest.raises(exceptions.BadRequest, match=r"resource\.name"):
        seal(stage, name="Not A Name")
    seal(stage)
    with pytest.raises(exceptions.Conflict):
        seal(stage)


def test_an_image_whose_disk_goes_with_its_machine_has_failed_and_costs_nothing(stage: Stage) -> None:
    stage.run_vm()
    operation = seal(stage)
    stage.rest.delete(NAME)
    stage.advance(200)
    assert image(stage).status == "FAILED"
    done = stage.rest.get(f"/global/operations/{operation.name}")
    assert done["error"]["errors"][0]["message"] == "The source disk was deleted."
    assert stage.cloud.bill().images == ()


def test_weather_has_an_image_fail_stay_pending_for_ever_or_vanish_under_an_insert(stage: Stage) -> None:
    stage.run_vm()
    stage.cloud.weather.add({"fault": "image_failed"}, {"fault": "image_pending", "image": "bench-image-l4-2"})
    seal(stage, "bench-image-l4-1")
    seal(stage, "bench-image-l4-2")
    stage.advance(900)
    assert [image(stage, f"bench-image-l4-{n}").status for n in (1, 2)] == ["FAILED", "PENDING"]
    seal(stage, "bench-image-l4-3")
    stage.advance(120)
    stage.cloud.weather.add({"fault": "image_vanishes", "image": "bench-image-l4-3"})
    disks = insert_body("bench-on-it-1")["disks"]
    disks[0]["initializeParams"]["sourceImage"] = "global/images/bench-image-l4-3"
    status, answer = stage.rest.call("POST", f"/zones/{ZONE}/instances", insert_body("bench-on-it-1", disks=disks))
    assert (status, "/images/bench-image-l4-3' was not found" in answer["error"]["message"]) == (404, True)
    assert stage.cloud.weather.fired("image_vanishes") == 1


def test_an_images_archive_costs_from_ready_until_it_is_deleted(stage: Stage) -> None:
    stage.run_vm()
    seal(stage)
    stage.advance(90)
    stage.rest.delete(NAME)
    stage.advance(730 * 3600)
    (row,) = stage.cloud.bill().images
    gib = Decimal(row.bytes) / 2**30
    month = row.usd(stage.timeline.now())
    assert abs(month - gib * Decimal("0.05")) < Decimal("0.001")
    stage.rest.call("DELETE", "/global/images/bench-image-l4-1")
    stage.advance(730 * 3600)
    assert stage.cloud.bill().images[0].usd(stage.timeline.now()) == pytest.approx(month)
    assert stage.cloud.bill().document()["images"][0]["name"] == "bench-image-l4-1"


def test_images_of_others_cannot_be_deleted(stage: Stage) -> None:
    url = f"{stage.cloud.compute_url}/compute/v1/projects/deeplearning-platform-release/global/images/"
    newest = stage.rest.session.get(url + "family/common-cu129-ubuntu-2404-nvidia-580").json()["name"]
    assert stage.rest.session.request("DELETE", url + newest).status_code == 403

"""Whether a launch may boot from a prepared image, and what one costs."""

from __future__ import annotations

import re
import subprocess
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.config import load as configs
from orchestrator.core.errors import ConfigError, DocumentUnreadable
from orchestrator.core.images import (
    HINT,
    LABEL,
    CloudImage,
    ImageRecord,
    Unusable,
    Usable,
    choose_image,
    container_recipe,
    environment_of,
    environments_for,
    expires_label,
    family_of,
    first_difference,
    image_name,
    is_expired,
    judge_image,
    require_digest,
    storage_usd,
    usd_per_month,
)  # fmt: skip
from orchestrator.core.market.machines import CloudRefusal, InstanceRequest
from orchestrator.core.naming import is_prepared
from orchestrator.core.run import events as ev
from orchestrator.core.run.fold import replay
from orchestrator.runs.machines import lacks_image, on_base_image, validate_image
from tests.integration.stories.stage import GRIDS
from tests.unit.core.builders import RUN, VM, ZONE, Log, at, measured, planned, running
from tests.unit.startup.machine import stub

BASE = "projects/deeplearning-platform-release/global/images/base-v20261101"
WANTED = environment_of("2.13.0")
NAME = "bench-image-l4-20261121-040506-0001"


def record(**changes: Any) -> ImageRecord:
    facts: dict[str, Any] = {
        "name": NAME, "gpu": "l4", "url": f"projects/p/global/images/{NAME}", "base": BASE, "torch": "2.13.0",
        "driver": "580.95.05", "kernel": "6.8.0-1024-gcp", "environment": WANTED, "disk_gb": 60,
        "archive_bytes": 20 * 2**30, "run": RUN, "created_at": at(0), "expires_at": at(14 * 86_400), "usd": "0.47",
    }  # fmt: skip
    return ImageRecord(**(facts | changes))


def seen(**changes: Any) -> CloudImage:
    facts: dict[str, Any] = {
        "name": NAME, "url": f"projects/mine/global/images/{NAME}", "id": "1", "status": "READY", "created_at": at(0),
        "labels": {},
    }  # fmt: skip
    return CloudImage(**(facts | changes))


def verdict(one: ImageRecord, there: CloudImage | None = None, hours: float = 1, base: str = BASE) -> Usable | Unusable:
    return judge_image(one, there, base, (WANTED,), at(3600 * hours))


def test_an_image_past_the_gates_within_two_days_is_used_and_others_are_validated() -> None:
    fresh = verdict(record(validated_at=at(0)), seen())
    assert isinstance(fresh, Usable)
    assert (fresh.validates, fresh.url) == ("", f"projects/mine/global/images/{NAME}")
    first = verdict(record(), seen())
    assert isinstance(first, Usable)
    assert first.validates == "no run has passed the checks on it yet"
    late = verdict(record(validated_at=at(0)), seen(), hours=49)
    assert isinstance(late, Usable)
    assert late.validates == "it was validated 49 h ago"


@pytest.mark.parametrize(
    ("one", "there", "hours", "base", "why"),
    [
        (record(), None, 1, BASE, "it is gone"),
        (record(gone_at=at(5)), seen(), 1, BASE, "it is gone"),
        (record(), seen(status="PENDING"), 1, BASE, "its status in the cloud is PENDING"),
        (record(), seen(deprecated="DEPRECATED"), 1, BASE, "it is deprecated"),
        (record(), seen(), 15 * 24, BASE, "it expired on 2026-12-05"),
        (record(broken="a run failed on it"), seen(), 1, BASE, "a run failed on it"),
        (record(), seen(), 1, BASE[:-1] + "2", "its base is base-v20261101, and base-v20261102 is newer"),
        (record(expires_at=at(40 * 86_400)), seen(), 31 * 24, BASE, "it is 31 days old"),
        (record(environment="other"), seen(), 1, BASE, "something else is to be on it by now"),
    ],
)
def test_no_launch_boots_from_an_image_that_is_gone_stale_or_known_to_be_broken(
    one: ImageRecord, there: CloudImage | None, hours: float, base: str, why: str
) -> None:
    found = verdict(one, there, hours, base)
    assert isinstance(found, Unusable)
    assert found.why == why


def test_the_newest_usable_image_of_the_gpu_is_taken_and_the_others_are_told() -> None:
    newer = record(name=f"{NAME[:-1]}2", created_at=at(60), broken="it fails")
    other = record(name="bench-image-t4-20261121-040506-0001", gpu="t4")
    there = {one.name: seen(name=one.name) for one in (record(), newer, other)}
    usable, rest = choose_image([other, record(), newer], there, "l4", BASE, (WANTED,), at(120))
    assert usable.record.name == NAME
    assert [one.why for one in rest] == ["it fails"]
    assert choose_image([other], there, "l4", BASE, (WANTED,), at(120)) == (None, ())


def test_a_workload_boots_from_an_image_with_its_needs_else_one_with_torch_alone() -> None:
    needs = ("pip triton==3.4", "apt libnuma-dev")
    own = record(
        name=f"{NAME[:-1]}3", environment=environment_of("2.13.0", needs), requirements=needs, created_at=at(-60)
    )
    there = {one.name: seen(name=one.name) for one in (record(), own)}

    def taken(*requirements: str) -> str:
        wanted = environments_for("2.13.0", requirements)
        usable, _ = choose_image([record(), own], there, "l4", BASE, wanted, at(120))
        return usable.record.name

    assert taken(*reversed(needs)) == own.name
    assert taken("pip triton==3.5") == NAME
    assert taken() == NAME
    found = judge_image(own, there[own.name], BASE, environments_for("2.13.0", ()), at(120))
    assert isinstance(found, Unusable)
    assert (found.why, found.stale) == (f"it was made for a workload that needs {', '.join(needs)}", False)


def test_an_image_is_judged_by_the_kernel_driver_and_torch_that_its_last_run_told_of() -> None:
    told = {"kernel": "6.8.0-1024-gcp", "driver": "580.95.05", "torch": "2.13.0+cu129"}
    assert first_difference(record(), told) == ""
    assert first_difference(record(driver=""), told) == ""
    assert first_difference(record(), told | {"kernel": "6.8.0-1025-gcp"}).startswith(
        "it now has kernel 6.8.0-1025-gcp"
    )
    run = replay(running().vm(20, measured("a")).events)
    assert run is not None
    same = validate_image(record(driver=""), run, told, at(30))
    assert (same.validated_at, same.validated_by, same.driver) == (at(30), RUN, "580.95.05")
    assert validate_image(record(), run, told | {"kernel": "new"}, at(30)).kernel == "new"
    assert validate_image(same, run, told, at(30)) is same


def test_a_run_ended_by_its_image_keeps_later_launches_off_that_image() -> None:
    failed = replay(running().vm(20, ev.Diagnosed(cause="no_cuda", detail="x")).events)
    wrong = replay(running().vm(20, ev.Diagnosed(cause="kernel_wrong", detail="x")).events)
    healed = replay(running().vm(20, ev.Healed(what="torch", detail="x")).vm(30, measured("a")).events)
    assert failed is not None
    assert wrong is not None
    assert healed is not None
    assert validate_image(record(), failed, {}, at(30)).broken == f"{RUN} failed on it: no_cuda"
    assert validate_image(record(), wrong, {}, at(30)) == record()
    assert "had to install torch" in validate_image(record(), healed, {}, at(30)).broken


def test_a_run_goes_by_the_image_that_it_really_booted_from() -> None:
    log = Log().add(0, planned(image="projects/p/global/images/bench-image-l4-1"))
    log.add(1, ev.ImageReplaced(image="projects/p/global/images/bench-image-l4-1", instead=BASE))
    run = replay(log.events)
    assert run.image == BASE
    again = replay(log.add(5, ev.RunResumed(generation=1, ceiling_usd="1", ttl_s=60, attempts=1, by="ada")).events)
    assert is_prepared(again.image)


def request() -> InstanceRequest:
    return InstanceRequest(
        VM, ZONE, "g2-standard-4", None, 0, "SPOT", 60, f"projects/p/global/images/{NAME}", 60, "pd-balanced", "n",
        True, None, {}, {}, "11111111-1111-4111-8111-111111111111", BASE,
    )  # fmt: skip


def test_a_machine_refused_for_want_of_its_image_is_asked_for_on_the_base_image() -> None:
    gone = CloudRefusal("notFound", f"The resource 'projects/p/global/images/{NAME}' was not found", "all")
    assert lacks_image(gone, request())
    assert not lacks_image(
        CloudRefusal("notFound", "The resource 'global/images/other' was not found", "all"), request()
    )
    other = on_base_image(request())
    assert (other.image, other.base_image) == (BASE, "")
    assert other.request_id != request().request_id
    assert on_base_image(request()) == other
    assert not lacks_image(gone, other)


@given(st.integers(0, 2**40), st.floats(0, 10**8), st.floats(0, 10**8))
def test_storage_costs_by_size_and_time_and_never_less_than_the_whole_of_its_parts(
    size: int, one_s: float, other_s: float
) -> None:
    assert storage_usd(size, one_s) + storage_usd(size, other_s) >= storage_usd(size, one_s + other_s) - Decimal(
        "0.000002"
    )
    assert storage_usd(size, -1) == 0


def test_twenty_gib_cost_a_dollar_a_month() -> None:
    assert usd_per_month(20 * 2**30) == Decimal("1.000000")


def test_expiry_is_a_label_that_anybody_can_read_and_no_other_text_is_one() -> None:
    label = {"bench-expires": expires_label(at(100))}
    assert (is_expired(label, at(99)), is_expired(label, at(100))) == (False, True)
    for text in ("", "soon", "١٢", "9" * 20):
        assert not is_expired({"bench-expires": text}, at(100) + timedelta(days=9999))


def test_names_sort_by_time_and_are_known_as_prepared() -> None:
    one, two = image_name("l4", "20261121-040506-cpu-ab12"), image_name("l4", "20261121-040606-cpu-0000")
    assert one < two
    assert one == "bench-image-l4-20261121-040506-ab12"
    assert is_prepared(f"projects/p/global/images/{one}")
    assert not is_prepared(BASE)
    assert family_of("a100-80") == "bench-image-a10080"


def test_a_record_survives_the_bucket_and_what_is_none_says_what_to_do() -> None:
    assert ImageRecord.parse(NAME, record(validated_at=at(3)).dump()) == record(validated_at=at(3))
    with pytest.raises(DocumentUnreadable) as refusal:
        ImageRecord.parse(NAME, b"[]")
    assert f"bench image rm {NAME}" in refusal.value.hint


# A container is named by its digest; its recipe has what an image has, and nothing that changes by itself.


DIGEST = "sha256:" + "0f" * 32
NEEDS = ("apt libnuma-dev", "pip triton==3.4", "pip own-1.0-py3-none-any.whl", "wheel own-1.0-py3-none-any.whl ab")


def test_a_tag_alone_is_refused_with_what_prints_its_digest() -> None:
    assert require_digest("") == ""
    assert require_digest(f"ghcr.io/ada/bench:v1@{DIGEST}") == f"ghcr.io/ada/bench:v1@{DIGEST}"
    for wrong in ("ghcr.io/ada/bench:v1", f"ghcr.io/ada/bench@{DIGEST[:-1]}", f"a b@{DIGEST}", f"x@{DIGEST}; rm -rf /"):
        with pytest.raises(ValueError, match="expected NAME@sha256"):
            require_digest(wrong)
    assert "imagetools inspect" in HINT


def test_a_configuration_takes_a_container_by_its_digest_and_keeps_no_machine_for_it() -> None:
    def loaded(*more: str) -> str:
        return configs.load("gpu: l4", source="x.yaml", overrides=more, grids=GRIDS).machine.container

    assert loaded(f"machine.container=a/b@{DIGEST}") == f"a/b@{DIGEST}"
    for wrong in (("machine.container=a/b:latest",), (f"machine.container=a/b@{DIGEST}", "run.keep=true")):
        with pytest.raises(ConfigError):
            loaded(*wrong)


def steps(dockerfile: str) -> list[str]:
    """The instructions, continued lines as one."""
    text = re.sub(r"\\\n\s*", "", dockerfile)
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def test_a_recipe_keeps_the_rules_of_dockerfiles() -> None:
    made = container_recipe("2.13.0", environment_of("2.13.0", NEEDS), NEEDS)
    told = steps(made.dockerfile)
    verbs = [line.split()[0] for line in told]
    assert verbs[:2] == ["ARG", "FROM"]
    assert set(verbs) <= {"ARG", "FROM", "LABEL", "ENV", "RUN", "COPY"}
    assert f'{LABEL}="{environment_of("2.13.0", NEEDS)}"' in made.dockerfile
    assert ":latest" not in made.dockerfile
    for line in told:
        if "apt-get install" in line:
            assert "--no-install-recommends" in line
            assert line.startswith("RUN apt-get update && ")
            assert line.endswith("rm -rf /var/lib/apt/lists/*")
        if "pip install" in line:
            assert "--no-cache-dir" in line
    assert made.requirements.splitlines() == ["torch==2.13.0", "numpy", "triton==3.4"]
    assert made.wheels == ("own-1.0-py3-none-any.whl",)


def test_every_step_of_a_recipe_runs(tmp_path: Path) -> None:
    """With stand-ins that write down what they were called with: that a shell takes each step, and in which order."""
    called = tmp_path / "called"
    for name in ("apt-get", "python3", "rm"):
        stub(tmp_path / "bin", name, f'echo "{name} $*" >>{called}')
    for line in steps(container_recipe("2.13.0", "e", NEEDS).dockerfile):
        if line.startswith("RUN "):
            subprocess.run(
                ["/bin/sh", "-ec", line.removeprefix("RUN ")], env={"PATH": str(tmp_path / "bin")}, check=True
            )
    told = called.read_text().splitlines()
    assert told[0] == "apt-get update"
    assert told[1].startswith("apt-get install -y --no-install-recommends ca-certificates g++ libnuma-dev")
    assert [line.partition("--no-input ")[2] for line in told if "pip install" in line] == [
        "-r /opt/bench/requirements.txt", "/opt/bench/wheels/*.whl",
    ]  # fmt: skip

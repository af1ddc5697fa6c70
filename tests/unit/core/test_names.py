"""Names are types: what is none never becomes one, and nothing else reaches a request, a path or an argument list."""

from __future__ import annotations

import ast
import json
import re
import string
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import ports
from orchestrator.core import names, naming
from orchestrator.core.hosts import HostTarget
from orchestrator.core.market import machines
from orchestrator.core.market.catalog import GPU_NAMES, launch_command
from orchestrator.core.market.offers import Offer
from orchestrator.core.names import CheckedName, ImageUrl, MachineName, ProjectId, ResourceId, RunId, Zone, child_run
from orchestrator.core.run import events as ev
from orchestrator.core.run.slots import Slot
from tests.unit.core.builders import RUN, T0, VM, Log, at, measured, planned
from tests.unit.core.test_run import some_facts

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
    "run_planned": ("image",), "lent": ("to",), "case_checked": ("case_id",), "case_started": ("case_id",),
    "case_measured": ("case_id",), "case_observed": ("case_id",),
}  # fmt: skip
GOOD: dict[str, Any] = {
    "vm": VM, "zone": "us-central1-a", "owner": RUN, "attempt": 1, "instance_id": "12", "image": "projects/p/global/images/i",
    "instead": "projects/p/global/images/j", "to": RUN, "machine_type": "g2-standard-4", "provisioning": "SPOT", "code": "X",
    "usd_per_hour": "1", "max_run_s": 60, "request_id": "r", "started_at": "2026-11-21T04:05:06Z", "how": "deleted",
    "deadline_at": "2026-11-21T05:05:06Z", "ended_at": "2026-11-21T05:05:06Z", "gpu": "l4", "config": "l4", "user": "ada",
    "mode": "gce", "ceiling_usd": "1", "ttl_s": 60, "attempts": 1, "cases": 1, "measurements_per_implementation": 1,
    "case_id": "rows64-float32", "implementation": "mine[/x]", "passed": True, "index": 1, "of": 2, "rows": 1, "seconds": 1, "place": "x",
}  # fmt: skip


@pytest.mark.parametrize(("kind", "key"), [(kind, key) for kind, keys in NAMED.items() for key in keys])
@pytest.mark.parametrize("text", HOSTILE)
def test_an_event_with_a_name_that_is_none_is_left_aside_and_says_nothing(kind: str, key: str, text: str) -> None:
    def decoded(data: dict[str, Any]) -> ev.Fact:
        sent = ev.Event(run_id=RUN, time=at(1), writer="vm-1", seq=1, fact=ev.Unrecognised(name=kind, data=data))
        event = ev.decode_event(ev.encode_event(sent))
        return event.fact

    assert isinstance(decoded(GOOD), ev.FACTS[kind])
    assert isinstance(decoded(GOOD | {key: text}), ev.Unrecognised)


def test_every_field_of_a_fact_that_names_something_has_a_type_of_names() -> None:
    for kind, fact in ev.FACTS.items():
        for key, field in fact.model_fields.items():
            if key in ("vm", "zone", "zones_available", "owner", "instance_id", "image", "instead", "to", "case_id"):
                assert "str" not in str(field.annotation).replace("orchestrator", ""), (kind, key)


@pytest.mark.parametrize("key", ["vm", "zone", "owner"])
@pytest.mark.parametrize("text", HOSTILE)
def test_a_slot_with_a_name_that_is_none_is_no_slot(key: str, text: str) -> None:
    names = {"vm": VM, "zone": "us-central1-a", "owner": RUN}
    slot = {"schema": 1, "state": "idle", **names, "idle_until": "2026-11-21T05:00:00Z"}
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


STARTS = re.compile(
    r"(?:subprocess\.(?:run|Popen|call|check_\w+)|os\.(?:exec\w+|spawn\w+|posix_spawn\w*|system|popen)|run_attached)$"
)
BEFORE_A_NAME = re.compile(
    r"(?:^|[/:])(?:projects|zones|instances|regions|b|o|jobs|locations|instanceTemplates|serviceAccounts|networks|disks|images|"
    r"acceleratorTypes|machineTypes|operations|family|services)/$|https?://$"
)
"""What stands in a URL, or in a resource's name, right before a name."""
PROGRAMS = {
    "adapters/files.py start_bench": "this interpreter and this tool; the command line of the user's own launch",
    "adapters/files.py run_attached": "cli/ssh.py is its only caller",
    "cli/ssh.py ssh": "core.hosts: MachineName, Zone and ProjectId, or a host that this user has named",
    "adapters/hosts/local_shell.py LocalShell._ran": "the user's shell, with a line that hosts/shell.py quotes",
    "adapters/hosts/ssh.py OpenSshSettings.lookup": "HostTarget, after `--`",
    "adapters/ncu_report.py pages_of": "this interpreter, with a path that the user gave",
    "adapters/notify.py CommandNotifier.notify": "the command of the user's own configuration",
    "adapters/payload.py _git": "constants, in the folder of the user's own workload",
    "adapters/timer.py _systemctl": "constants",
    "agent/child.py start_process": "the machine's own: its payload",
    "host/child.py controller_time_s": "constants",
    "agent/__main__.py Conductor.into_container": "the machine's own: an image with its digest",
    "agent/__main__.py Conductor.then": "the machine's own: constants",
    "host/runs.py launch_steward": "the host's own",
    "host/supervisor.py Steward.run_to_its_end": "the host's own",
    "host/machine.py run_command": "the host's own: constants",
    "batch/task.py DoctorTask.run_bootstrap": "the machine's own: constants, and a folder that it made",
}
"""Every place that starts a program, and what its arguments are."""
TYPED = {
    "adapters/batch/bodies.py": "ProjectId, JobName and Region of a BatchRecord",
    "adapters/batch/check.py": "ProjectId and Region of the user's own place; an id made here",
    "adapters/batch/scheduler.py": "ProjectId; JobName and Region of a BatchRecord",
    "adapters/google/compute.py": "MachineName",
    "adapters/google/instance_body.py": "ProjectId; Zone and MachineType of an InstanceRequest; the catalogue's accelerator; own network",
    "adapters/google/images.py": "ProjectId, Zone, MachineName, ImageName",
    "adapters/google/market.py": "ProjectId, ImageName, Region and Zone; an image's path that ImageUrl checks",
    "adapters/google/network.py": "an endpoint of a constant list, or of the embedded cloud",
    "adapters/slurm.py": "the number of a job",
    "core/fleet/batch.py": "the name of an object in the bucket, quoted by adapters/google/storage.py",
    "core/market/skus.py": "a service of the Billing Catalog; quoted by adapters/google/rest.py",
    "core/doctor/project.py": "the project of the user's own settings; quoted by adapters/google/rest.py",
    "runs/machines.py": "an ImageUrl, compared with what the cloud says",
    "batch/task.py": "the machine's own: its metadata server",
    "core/names.py": "the forms themselves",
    "core/doctor/capacity.py": "the project of the user's own settings; quoted by adapters/google/rest.py",
    "core/doctor/machine.py": "the project and account of the user's own settings; quoted by adapters/google/rest.py",
    "core/doctor/verdicts.py": "an API of a constant list, in a message",
    "core/setup/calls.py": "the project, account and bucket that are set up; quoted by adapters/google/rest.py",
    "core/setup/plan.py": "the project that is set up",
    "core/setup/steps.py": "the project that is set up, as text for the user",
    "agent/container.py": "the machine's own: the registry of its image",
    "agent/metadata.py": "the machine's own: its metadata server",
    "agent/storage.py": "the machine's own, quoted",
    "host/services.py": "the host's own: its port, and the zone that its client gave it",
    "batch/around.py": "the machine's own: its metadata server",
}
"""Every file that puts a name into a URL or the name of a resource, and by what it is bounded."""


def places(kind: Callable[[ast.AST], bool]) -> set[str]:
    """Where such nodes are: `file Class.function`, the file without its top folder."""
    found: set[str] = set()

    def visit(node: ast.AST, file: str, within: tuple[str, ...]) -> None:
        if kind(node):
            found.add(f"{file} {'.'.join(within)}")
        inner = (*within, node.name) if isinstance(node, ast.FunctionDef | ast.ClassDef) else within
        for child in ast.iter_child_nodes(node):
            visit(child, file, inner)

    for top in ("orchestrator", "spotbench", "startup"):
        for path in (ROOT / top).rglob("*.py"):
            if not {"_bundle", "embedded"} & set(path.parts):
                visit(ast.parse(path.read_text(encoding="utf-8")), path.relative_to(ROOT / top).as_posix(), ())
    return found


def starts_a_program(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and STARTS.search(ast.unparse(node.func)) is not None


def puts_a_name_into_a_url(node: ast.AST) -> bool:
    pairs = zip(node.values, node.values[1:], strict=False) if isinstance(node, ast.JoinedStr) else ()
    return any(
        isinstance(text, ast.Constant)
        and isinstance(value, ast.FormattedValue)
        and BEFORE_A_NAME.search(str(text.value))
        for text, value in pairs
    )


def test_every_place_that_starts_a_program_is_known_with_what_its_arguments_are() -> None:
    """A new one is looked at before it is listed: no text of others may be an argument, but as a name by its type."""
    assert places(starts_a_program) == set(PROGRAMS)


def test_every_file_that_puts_a_name_into_a_url_is_known_with_what_bounds_it() -> None:
    assert {place.partition(" ")[0] for place in places(puts_a_name_into_a_url)} == set(TYPED)


@pytest.mark.parametrize(
    "text",
    ["subprocess.run(['x'])", "os.execve('x', [], {})", "f'/zones/{zone}'", "f'https://{host}/'", "f'a/projects/{p}'"],
)
def test_the_walk_sees_what_it_looks_for(text: str) -> None:
    nodes = list(ast.walk(ast.parse(text)))
    assert any(starts_a_program(node) or puts_a_name_into_a_url(node) for node in nodes)


@pytest.mark.parametrize("text", HOSTILE)
def test_no_offer_and_no_host_is_made_of_hostile_text(text: str) -> None:
    """Offers come from plans in the bucket, hosts from records there."""
    whole = {"region": "us-central1", "zone": "us-central1-a", "machine_type": "g2-standard-4"}
    for key in whole:
        named: dict[str, Any] = whole | {key: text}
        with pytest.raises(ValueError, match="is not the form of"):
            Offer(
                gpu="l4", accelerator=None, accelerator_count=0, provisioning="SPOT", usd_per_hour=Decimal(1), **named
            )
    for target in (("-o", text, None), (text, "-oProxyCommand=x", None), ("me", "-x", None), ("me", f"{text} x", None)):
        with pytest.raises(ValueError, match="is not the form of a host"):
            HostTarget(*target)


def test_whose_word_counts_is_said_of_every_fact_and_the_page_says_the_same() -> None:
    clients = {kind for kind, fact in ev.FACTS.items() if issubclass(fact, ev.ClientFact)}
    claims = {ev.MachineTaken.kind}
    page = (ROOT / "docs" / "threat-model.md").read_text(encoding="utf-8")
    for who, kinds in (("client", clients), ("machine", {*ev.FACTS} - clients - claims), ("claim", claims)):
        (row,) = re.findall(rf"^\| `{who}` \|(.*?)\|", page, re.MULTILINE)
        assert set(re.findall(r"`([a-z_]+)`", row)) == kinds


# Events and names survive the trip through a bucket.


times = st.datetimes(datetime(2020, 1, 1), datetime(2100, 1, 1)).map(lambda naive: naive.replace(tzinfo=UTC))  # noqa: DTZ001
INSTANCE_NAME = r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?"


@given(st.sampled_from(some_facts()), times, st.integers(1, 999_999))
def test_an_event_decodes_to_itself(fact: ev.Fact, when: datetime, seq: int) -> None:
    event = ev.Event(run_id=RUN, time=when, writer="vm-1", seq=seq, fact=fact)
    decoded = ev.decode_event(ev.encode_event(event))
    assert (decoded.order, decoded.fact.model_dump(), decoded.object_name) == (
        event.order,
        event.fact.model_dump(),
        event.object_name,
    )


def test_an_unknown_kind_and_unreadable_data_are_kept_not_lost() -> None:
    document = json.loads(ev.encode_event(Log().add(0, planned()).events[0]))
    future = ev.decode_event(json.dumps(document | {"kind": "teleported", "data": {"to": "mars"}}).encode())
    assert future.fact == ev.Unrecognised(name="teleported", data={"to": "mars"})
    broken = ev.decode_event(json.dumps(document | {"data": {"gpu": "l4"}}).encode())
    assert isinstance(broken.fact, ev.Unrecognised)
    assert broken.fact.name == "run_planned"


def test_keys_from_the_future_are_ignored() -> None:
    document = json.loads(ev.encode_event(Log().add(0, measured("a")).events[0]))
    document["data"]["joules"] = 3
    decoded = ev.decode_event(json.dumps(document).encode())
    assert decoded.fact == measured("a")


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"\xff", b'{"kind": "finished", "data": {"outcome": "x"}}', b"7"])
def test_what_is_no_event_is_nothing(data: bytes) -> None:
    assert ev.decode_event(data) is None


writers = st.lists(st.text(string.ascii_lowercase + string.digits, min_size=1, max_size=6), min_size=1, max_size=3).map(
    "-".join
)


@given(
    times,
    writers,
    st.integers(1, 999_999),
    st.sampled_from(sorted(ev.FACTS)),
)
def test_an_event_name_parses_into_its_parts(when: datetime, writer: str, seq: int, kind: str) -> None:
    name = naming.EventName(when, writer, seq, kind)
    assert naming.parse_event_object(name.object(RUN)) == name


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(1, 999)), min_size=2, max_size=10))
def test_event_names_sort_by_time(stamps: list[tuple[int, int]]) -> None:
    names = [naming.EventName(at(micro / 1e6), "vm-1", seq, "healed") for micro, seq in stamps]
    objects = [name.object(RUN) for name in names]
    assert sorted(objects) == [name.object(RUN) for name in sorted(names)]


@pytest.mark.parametrize("name", ["runs/x/events/notes.txt", "20261399T000000.000000Z-vm-000001-healed.json", ""])
def test_other_objects_are_no_events(name: str) -> None:
    assert naming.parse_event_object(name) is None


@given(times, st.text(min_size=1, max_size=12), st.integers(0, 0xFFFF))
def test_a_run_id_makes_a_legal_instance_name_and_label(when: datetime, gpu: str, entropy: int) -> None:
    run = naming.run_id(when, f"x{gpu}", f"{entropy:04X}")
    assert naming.is_run_id(run)
    assert re.fullmatch(INSTANCE_NAME, naming.instance_name(run, 99))


@given(st.text(max_size=100), st.text(max_size=222))
def test_any_user_and_bucket_make_legal_labels(user: str, bucket: str) -> None:
    for value in naming.machine_labels(RUN, 1, user, bucket).values():
        assert len(value) <= 63
        assert set(value) <= set(string.ascii_lowercase + string.digits + "_-")


def test_where_things_are() -> None:
    assert naming.run_id(T0, "L4", "7F3A99") == RUN
    assert naming.payload_object("ab") == "payloads/ab.tar.gz"
    assert naming.index_object(RUN) == f"index/{RUN}.json"
    assert naming.run_prefix(RUN) == f"runs/{RUN}/"
    assert naming.cases_prefix(RUN) == f"runs/{RUN}/cases/"
    assert naming.artifacts_prefix(RUN) == f"runs/{RUN}/artifacts/"
    assert not naming.is_run_id("last")


@pytest.mark.parametrize("gpu", GPU_NAMES)
def test_a_hint_to_launch_again_names_the_gpu_of_the_run(gpu: str) -> None:
    command = f"`bench launch --gpu {gpu}`"
    assert launch_command(naming.run_id(T0, gpu, "7f3a")) == command
    assert launch_command(child_run("fleet-20261122-040506-7f3a", gpu, 42)) == command


def test_a_hint_to_launch_again_repeats_nothing_of_a_name_that_is_no_run() -> None:
    assert launch_command("x; rm -rf ~ -l4-7f3a") == "`bench launch --gpu GPU`"

"""A machine that somebody owns may be anybody's: it has a say in its own run, and in nothing else of the bucket."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.adapters.hosts.cloud import HostCloud
from orchestrator.core.errors import DocumentUnreadable, HostUnfit, Unavailable
from orchestrator.core.host_answers import CASE_BYTES, RUN_FILES, sort_spool
from orchestrator.core.hosts import HostRecord, HostRun, HostTarget, parse_target, record_object
from orchestrator.core.market.machines import Accepted, CloudRefusal, InstanceRequest
from orchestrator.core.naming import SESSION_LABEL, candidate_object, instance_name, machine_labels, verdict_object
from orchestrator.core.run import events as ev
from orchestrator.store.events import EventLog
from tests.support.hostile_spool import forged_names
from tests.support.memory_bucket import MemoryBucket
from tests.support.simulated_clock import SimulatedClock

RUN = "20261121-040000-cpu-0001"
OTHER = "20261121-030000-l4-0002"
VM = instance_name(RUN, 1)
BOX = parse_target("me@box")
NOW = datetime(2026, 11, 21, 4, 0, tzinfo=UTC)
EVENT = f"runs/{RUN}/events/20261121T040001.000000Z-vm-1-000001-phase_started.json"


@dataclass
class Shell:
    """A host that answers whatever it likes."""

    answer: Any
    files: Mapping[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    otherwise: dict[str, Any] = field(default_factory=dict)
    """By operation, what it answers to that alone."""
    told: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """By operation, what it was last told."""

    def ask(self, operation: str, arguments: Mapping[str, Any], *, python: str = "", timeout_s: float = 60) -> Any:
        self.asked.append(operation)
        self.told[operation] = arguments
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.otherwise.get(operation, self.answer)

    def put(self, data: bytes, path: str) -> None: ...

    def get(self, path: str, *, limit: int) -> bytes | None:
        data = self.files.get(path.removeprefix("/spool/"))
        return None if data is None else data[: limit + 1]

    def close(self) -> None: ...


def record(run: str = RUN, target: HostTarget = BOX) -> bytes:
    tags = machine_labels(run, 1, "ada", "memory")
    one = HostRun(run_id=run, labels=tags, id="7", created_at=NOW, deadline_at=NOW + timedelta(hours=1))
    return HostRecord(target=str(target), runs={instance_name(run, 1): one}).model_dump_json(by_alias=True).encode()


def hosts(shell: Shell, bucket: MemoryBucket | None = None) -> HostCloud:
    bucket = bucket or MemoryBucket()
    bucket.create(record_object(BOX.zone), record())
    return HostCloud(bucket, SimulatedClock(NOW), lambda _: shell)


def running(*names: str, **more: Any) -> dict[str, Any]:
    files = [[name, 2, 1] for name in names]
    told = {"exists": True, "status": "running", "deadline_s": 3600, "now": 10.0, "started_at": 5.0, "spool": "/spool"}
    return {**told, "files": files, **more}


def test_a_damaged_record_on_a_host_is_named_and_ends_no_run_that_goes_on() -> None:
    said = "/home/me/.cache/spotbench/runs/x/run.json is not JSON: it was cut off or overwritten"
    good = f"runs/{RUN}/cases/a.csv"
    cloud = hosts(Shell(running(good, deadline_s=0, odd=said), {good: b"x"}))
    found = cloud.instance(BOX.zone, VM)
    assert found is not None
    assert found.deadline_at == NOW + timedelta(hours=1)
    assert cloud.bucket.read(good) is not None
    assert cloud.odd == {VM: f"{said}, on me@box; what {VM} stored is copied to the bucket all the same"}


def test_a_host_waits_for_the_verdict_on_what_this_client_gave_it_and_for_no_other() -> None:
    shell, bucket, stored = Shell(running()), MemoryBucket(), record()
    session = json.loads(stored)
    session["runs"][VM]["labels"][SESSION_LABEL] = "1"
    cloud = HostCloud(bucket, SimulatedClock(NOW), lambda _: shell)
    bucket.create(record_object(BOX.zone), json.dumps(session).encode())

    def awaited() -> tuple[list[str], str]:
        cloud.instance(BOX.zone, VM)
        return sorted(shell.told["state"]["given"]), shell.told["state"]["awaits"]

    bucket.create(candidate_object(RUN, 1), b"{}")
    assert awaited() == (["000001.json"], ""), "another client's, or one of before"
    bucket.create(candidate_object(RUN, 2), b"{}")
    assert awaited() == (["000002.json"], verdict_object(RUN, 2))
    assert awaited() == ([], verdict_object(RUN, 2))
    shell.answer = running(verdict_object(RUN, 2))
    assert awaited() == ([], verdict_object(RUN, 2))
    assert awaited() == ([], ""), "it is there"


FORGED = forged_names(RUN, OTHER, VM)


@pytest.mark.parametrize("name", FORGED)
def test_a_host_stores_nothing_but_what_is_its_runs_own(name: str) -> None:
    good = f"runs/{RUN}/cases/a.csv"
    shell = Shell(running(name, good, EVENT), {name: b"{}", good: b"x", EVENT: b"{}"})
    cloud = hosts(shell)
    before = {entry.name for entry in cloud.bucket.list("")}
    assert cloud.instance(BOX.zone, VM) is not None
    assert {entry.name for entry in cloud.bucket.list("")} - before == {good, EVENT}
    (said,) = cloud.odd.values()
    assert said.startswith("me@box has files in its spool that its run may not store; they were not copied: ")
    assert "\n" not in said
    assert "\x1b" not in said


kinds = st.sampled_from(["cases", "events", "artifacts", "ledger", "..", "", ".", "plan.json", "grids"])
parts = st.text("abz019._-+/\\ \n\x00\x1bé", max_size=12) | kinds
names = (
    st.lists(parts, max_size=5).map("/".join)
    | st.tuples(st.sampled_from([RUN, OTHER]), kinds, parts, st.sampled_from([".csv", ".json", ""])).map(
        lambda t: f"runs/{t[0]}/{t[1]}/{t[2]}{t[3]}"
    )
    | st.sampled_from(FORGED)
)
numbers = (
    st.integers(-5, 10**12)
    | st.sampled_from([0, 256 * 1024 + 1, CASE_BYTES + 1])
    | st.none()
    | st.floats()
    | st.booleans()
    | st.just("1")
)

own = st.sampled_from([f"runs/{RUN}/cases/a.csv", EVENT, f"runs/{RUN}/artifacts/log.txt"])
sizes = st.sampled_from([0, 1, 256 * 1024, 256 * 1024 + 1, CASE_BYTES, CASE_BYTES + 1])


@given(st.lists(st.tuples(names, numbers, numbers) | st.tuples(own, sizes, sizes) | names | st.integers(), max_size=12))
def test_whatever_a_host_offers_only_small_files_of_its_own_run_are_taken(files: list[Any]) -> None:
    found = sort_spool(RUN, files)
    for one in found.taken:
        home, run, kind, *rest = one.name.split("/")
        assert (home, run) == ("runs", RUN)
        assert kind in ("cases", "events", "artifacts")
        assert rest
        assert all(part and not part.startswith(".") and part.isascii() and part.isprintable() for part in rest)
        assert kind == "artifacts" or len(rest) == 1
        assert 0 <= one.size <= one.limit <= CASE_BYTES
        assert one.grows == (kind == "artifacts")
    assert all(text.isprintable() for text in found.refused)


def test_no_run_has_more_files_than_any_run_of_ours() -> None:
    found = sort_spool(RUN, [(f"runs/{RUN}/cases/c{number}.csv", 1, 1) for number in range(RUN_FILES + 3)])
    assert (len(found.taken), len(found.refused)) == (RUN_FILES, 3)


def test_a_file_that_is_larger_than_it_was_said_to_be_is_not_stored() -> None:
    name = f"runs/{RUN}/events/20261121T040001.000000Z-vm-1-000001-phase_started.json"
    cloud = hosts(Shell(running(name), {name: b"x" * 300_000}))
    assert cloud.instance(BOX.zone, VM) is not None
    assert cloud.bucket.read(name) is None


def test_what_is_in_the_bucket_already_is_not_replaced_by_a_host() -> None:
    name = f"runs/{RUN}/cases/a.csv"
    cloud = hosts(Shell(running(name), {name: b"forged"}))
    cloud.bucket.create(name, b"measured")
    cloud.instance(BOX.zone, VM)
    blob = cloud.bucket.read(name)
    assert blob is not None
    assert blob.data == b"measured"


answers = st.sampled_from([None, [], "x", {}, {"exists": True}, {"exists": 1, "status": {}}]) | st.fixed_dictionaries(
    {"exists": st.just(True)},
    optional={
        key: st.none() | st.floats() | st.integers() | st.text(max_size=5) | st.lists(st.none(), max_size=2)
        for key in ("status", "deadline_s", "now", "started_at", "ended_at", "files", "spool", "ended_by", "trouble")
    },
)


@given(answers)
def test_whatever_a_host_answers_it_is_listed_or_gone_and_nothing_crashes(answer: Any) -> None:
    cloud = hosts(Shell(answer))
    for one in cloud.instances():
        assert one.name == VM
        assert one.deadline_at is not None
        assert one.deadline_at <= NOW + timedelta(hours=2)


def request(attempt: int) -> InstanceRequest:
    payload = {"bucket": "b", "object": "payloads/x.tar.gz", "sha256": "ab" * 32}
    metadata = {
        "bench-host": json.dumps({"target": str(BOX), "python": ""}), "bench-payload": json.dumps(payload),
        "startup-script": "", "bench-run": "{}",
    }  # fmt: skip
    return InstanceRequest(
        name=instance_name(RUN, attempt), zone=BOX.zone, machine_type="host", accelerator=None, accelerator_count=0,
        provisioning="OWN", max_run_s=600, image="", disk_gb=1, disk_type="", network="", external_ip=False,
        service_account=None, labels=machine_labels(RUN, attempt, "ada", "memory"), metadata=metadata, request_id="x",
    )  # fmt: skip


def test_what_a_host_measured_before_it_was_given_up_is_home_first() -> None:
    name = f"runs/{RUN}/cases/a.csv"
    over = {"exists": True, "status": "gone", "now": 9.0, "ended_at": 8.0, "files": [[name, 1, 1]], "spool": "/spool"}
    told = {"forget": {"exists": False}, "prepare": {"present": True}, "start": running()}
    shell = Shell(over, {name: b"x"}, otherwise=told)
    cloud = hosts(shell)
    assert isinstance(cloud.insert(request(2)), Accepted)
    assert shell.told["start"]["run"]["known"] == [name]
    assert cloud.bucket.read(name) is not None


@pytest.mark.parametrize("answer", [[], None, "yes", {}, {"exists": 1}, {"trouble": "failed", "message": "x"}])
def test_a_start_that_nobody_can_tell_of_is_ended_on_the_host(answer: Any) -> None:
    shell = Shell({"exists": False}, otherwise={"prepare": {"present": True}, "start": answer})
    refused = hosts(shell).insert(request(2))
    assert isinstance(refused, CloudRefusal)
    assert shell.asked[shell.asked.index("start") :].count("stop") == 1


UNCLEAR = [
    {"trouble": "failed", "message": "x"}, {"trouble": 1}, {}, {"exists": 1}, {"status": "gone"},
    {"exists": True, "status": "gone"}, {"exists": True, "status": "over", "files": []},
]  # fmt: skip


@pytest.mark.parametrize("answer", UNCLEAR)
def test_a_run_is_on_its_host_until_the_host_says_in_words_that_it_is_not(answer: Any) -> None:
    cloud = hosts(Shell(answer))
    with pytest.raises(HostUnfit):
        cloud.instance(BOX.zone, VM)
    with pytest.raises(HostUnfit):
        cloud.delete(BOX.zone, VM, "x")
    assert [one.status for one in cloud.instances()] == ["UNREACHABLE"]
    known = cloud.record(BOX.zone)
    assert known is not None
    assert known.runs[VM].ended_at is None


@pytest.mark.parametrize("answer", [{"trouble": "busy", "message": "it still runs"}, {"exists": True}, {}])
def test_what_a_host_did_not_remove_it_is_asked_to_remove_again(answer: Any) -> None:
    shell = Shell(
        {"exists": True, "status": "gone", "now": 5.0, "ended_at": 5.0, "files": []}, otherwise={"forget": answer}
    )
    cloud = hosts(shell)
    assert cloud.instances() == ()
    shell.otherwise = {"forget": {"exists": False}}
    for removed in (False, True):
        known = cloud.record(BOX.zone)
        assert known is not None
        assert known.runs[VM].removed is removed
        assert cloud.instances() == ()


def test_a_run_whose_client_died_as_it_began_costs_the_time_that_it_was_there() -> None:
    over = {"exists": True, "status": "gone", "now": 9.0, "ended_at": 8.0, "files": []}
    for answer, kinds in (
        ({**over, "ended_by": "itself"}, ["insert", "delete"]),
        ({**over, "ended_by": "lost"}, ["insert"]),
        ({"exists": False}, []),
    ):
        cloud = hosts(Shell(answer, otherwise={"forget": {"exists": False}}))
        assert cloud.instances() == ()
        operations = cloud.operations(BOX.zone, "7")
        assert [one.kind for one in operations] == kinds
        assert all(one.ended_at == NOW for one in operations if one.kind == "insert")


BROKEN = {
    "torn": b'{"schema": 1, "targ',
    "of a newer version": b'{"schema": 2, "address": "me@box", "runs": {}}',
    "not UTF-8": b"\xff\xfe",
    "no object": b"[]",
    "nested": b"[" * 50_000,
    "of another host": record(target=parse_target("you@elsewhere")),
    "with another's machine": record().replace(VM.encode(), instance_name(OTHER, 1).encode()),
    "with a program of its own": record().replace(b'"python":""', b'"python":"/tmp/evil"'),
    "with a time without zone": record().replace(b"2026-11-21T04:00:00Z", b"2026-11-21T04:00:00"),
    "empty": b"",
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
def test_a_record_that_cannot_be_read_hides_no_other_host_and_is_named(data: bytes) -> None:
    bucket = MemoryBucket()
    other = parse_target("you@tower")
    bucket.create(record_object(other.zone), data)
    cloud = hosts(Shell(running()), bucket)
    assert [one.name for one in cloud.instances()] == [VM]
    (said,) = cloud.odd.values()
    assert said.startswith(f"{record_object(other.zone)} cannot be read: ")
    with pytest.raises(DocumentUnreadable, match=r"cannot be read"):
        cloud.remember(other, lambda known: known)


def test_a_host_that_is_switched_off_is_listed_as_the_bucket_knows_it() -> None:
    (one,) = hosts(Shell(Unavailable("me@box cannot be reached"))).instances()
    assert (one.name, one.status) == (VM, "UNREACHABLE")


@given(st.sampled_from(sorted(ev.FACTS)))
def test_an_event_of_another_run_is_no_event_of_this_one(kind: str) -> None:
    bucket = MemoryBucket()
    fact = ev.Unrecognised(name=kind, data={"by": "mallory", "reason": "x", "attempt": 1})
    forged = ev.Event(run_id=OTHER, time=NOW, writer="vm-1", seq=1, fact=fact)
    bucket.create(EVENT, ev.encode_event(forged))
    log = EventLog(bucket, RUN, "client-1", SimulatedClock(NOW))
    assert log.read() == ()
    assert log.undecodable == {EVENT}


def test_an_object_that_is_too_large_for_an_event_is_never_fetched() -> None:
    bucket = MemoryBucket()
    bucket.create(EVENT, b" " * 300_000)
    calls = bucket.calls
    assert EventLog(bucket, RUN, "client-1", SimulatedClock(NOW)).read() == ()
    assert bucket.calls - calls == 1

"""The laws of a run's event log, over every bucket."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest

from orchestrator.core.errors import ProviderError, Unavailable
from orchestrator.core.naming import events_prefix
from orchestrator.core.run import events as ev
from orchestrator.core.run.events import (
    BOOTS,
    COUNTED,
    OF_A_BOOT,
    OTHER,
    BudgetHeld,
    CaseStarted,
    EventBounds,
    PhaseStarted,
    StopRequested,
    Unrecognised,
    VmBooted,
    encode_event,
)
from orchestrator.ports import Blob, Bucket
from orchestrator.store.events import BYTES_OF_A_MACHINE, EventLog
from tests.support.crowded_bucket import CrowdedBucket
from tests.support.memory_bucket import MemoryBucket
from tests.support.simulated_clock import SimulatedClock
from tests.unit.core.builders import planned, requested

RUN = "20261121-040506-l4-7f3a"


def log(bucket: Bucket, writer: str = "client-000001", clock: SimulatedClock | None = None) -> EventLog:
    return EventLog(bucket, RUN, writer, clock or SimulatedClock())


def phase(name: str) -> PhaseStarted:
    return PhaseStarted(phase=name)


def test_what_was_appended_reads_back_equal(bucket: Bucket) -> None:
    ours = log(bucket)
    held = ours.append(BudgetHeld(hold_usd="0.1234"))
    assert held.seq == 1
    assert ours.read() == (held,)
    assert log(bucket, "client-000002").read() == (held,)


def test_writers_see_each_other_in_order_of_time(bucket: Bucket) -> None:
    clock = SimulatedClock()
    client, machine = log(bucket, "client-000001", clock), log(bucket, "vm-1", clock)
    written = []
    for turn in range(6):
        written.append((client, machine)[turn % 2].append(phase(f"p{turn}")))
        clock.sleep(0.5)
    assert client.read() == tuple(written) == machine.read()
    assert [event.seq for event in written] == [1, 1, 2, 2, 3, 3]


def test_events_of_one_instant_keep_the_order_of_their_writer(bucket: Bucket) -> None:
    ours = log(bucket)
    for name in "abcdefghij":
        ours.append(phase(name))
    assert [event.fact.phase for event in log(bucket).read()] == list("abcdefghij")  # type: ignore[attr-defined]


def test_a_clock_that_is_set_back_does_not_put_an_effect_before_its_cause(bucket: Bucket) -> None:
    clock = SimulatedClock()
    ours = log(bucket, clock=clock)
    ours.append(phase("cause"))
    clock.at -= timedelta(hours=1)
    ours.append(phase("effect"))
    assert [event.fact.phase for event in ours.read()] == ["cause", "effect"]  # type: ignore[attr-defined]


def test_an_event_from_a_machine_whose_clock_is_behind_is_not_missed(bucket: Bucket) -> None:
    ours = log(bucket)
    ours.append(phase("ours"))
    assert len(ours.read()) == 1
    behind = SimulatedClock()
    behind.at -= timedelta(minutes=5)
    log(bucket, "vm-1", behind).append(phase("theirs"))
    assert [event.writer for event in ours.read()] == ["vm-1", "client-000001"]


def test_what_is_no_event_is_passed_over_and_named(bucket: Bucket) -> None:
    ours = log(bucket)
    event = ours.append(phase("a"))
    for name, data in (("zzz.json", b"\xff\x00"), ("list.json", b"[1]"), ("half.json", b'{"schema": 1, "kind"')):
        bucket.create(events_prefix(RUN) + name, data)
    assert ours.read() == (event,)
    assert {name.rsplit("/", 1)[-1] for name in ours.undecodable} == {"zzz.json", "list.json", "half.json"}
    assert ours.read() == (event,)


@pytest.mark.parametrize("kind", ["another writer's", "another kind's", "another number's", "no"])
def test_an_event_that_lies_under_a_name_that_is_not_its_own_is_none(bucket: Bucket, kind: str) -> None:
    """Who may write what is decided by names: what is inside may not say otherwise."""
    elsewhere = MemoryBucket()
    forged = log(elsewhere, "client-00beef").append(StopRequested(by="eve", reason="x"))
    name = {
        "another writer's": forged.object_name.replace("client-00beef", "vm-1-deadbeef"),
        "another kind's": forged.object_name.replace("stop_requested", "phase_started"),
        "another number's": forged.object_name.replace("-000001-", "-000002-"),
        "no": events_prefix(RUN) + "stop.json",
    }[kind]
    bucket.create(name, encode_event(forged))
    ours = log(bucket)
    assert ours.read() == ()
    assert ours.undecodable == {name}


def test_an_unknown_kind_is_kept(bucket: Bucket) -> None:
    event = log(bucket, "vm-1").append(Unrecognised(name="from_the_future", data={"a": 1}))
    assert log(bucket).read() == (event,)


def test_a_writer_that_was_here_before_counts_on(bucket: Bucket) -> None:
    log(bucket).append(phase("a"))
    again = log(bucket)
    again.read()
    assert again.append(phase("b")).seq == 2


def test_logs_of_different_runs_do_not_mix(bucket: Bucket) -> None:
    log(bucket).append(phase("a"))
    assert EventLog(bucket, "20261121-040506-l4-7f3b", "client-000001", SimulatedClock()).read() == ()


def test_only_what_was_not_seen_before_is_fetched() -> None:
    bucket = MemoryBucket()
    theirs, ours = log(bucket, "vm-1"), log(bucket)
    for n in range(30):
        theirs.append(phase(f"p{n}"))
    bucket.create(events_prefix(RUN) + "zzz.json", b"not an event")
    assert len(ours.read()) == 30
    before = bucket.calls
    assert len(ours.read()) == 30
    assert bucket.calls - before == 1
    theirs.append(phase("last"))
    ours.read()
    assert bucket.calls - before == 4  # the append, a listing, one object


@dataclass
class LosingBucket(MemoryBucket):
    """Stores, and loses the answer, as often as it is told to."""

    losses: int = 0
    retried: bool = True
    """Whether the client below asked again and was told that the object is there."""
    deleted: list[str] = field(default_factory=list)

    def create(self, name: str, data: bytes, *, content_type: str = "application/json") -> bool:
        created = super().create(name, data, content_type=content_type)
        if self.losses:
            self.losses -= 1
            if self.retried:
                return False
            raise Unavailable("no answer")
        return created


def test_a_lost_answer_makes_neither_an_error_nor_a_second_event() -> None:
    bucket = LosingBucket(losses=1)
    ours = log(bucket)
    event = ours.append(phase("a"))
    assert log(bucket).read() == (event,)


def test_after_no_answer_the_same_fact_goes_under_the_same_name() -> None:
    bucket = LosingBucket(losses=1, retried=False)
    clock = SimulatedClock()
    ours = log(bucket, clock=clock)
    with pytest.raises(Unavailable):
        ours.append(phase("a"))
    clock.sleep(30)
    event = ours.append(phase("a"))
    other = ours.append(phase("b"))
    assert log(bucket).read() == (event, other)
    assert (event.seq, other.seq) == (1, 2)


def test_after_no_answer_another_fact_is_another_event() -> None:
    bucket = LosingBucket(losses=1, retried=False)
    ours = log(bucket)
    with pytest.raises(Unavailable):
        ours.append(StopRequested(by="me", reason="first"))
    ours.append(StopRequested(by="me", reason="second"))
    assert [event.seq for event in log(bucket).read()] == [1, 2]


def test_two_processes_under_one_writer_name_are_found_out() -> None:
    bucket = MemoryBucket()
    one, two = log(bucket), log(bucket)
    one.append(VmBooted(vm="a", attempt=1))
    with pytest.raises(ProviderError, match="another process writes"):
        two.append(VmBooted(vm="b", attempt=1))
    assert two.append(VmBooted(vm="b", attempt=1)).seq == 2


class ForgetfulBucket(MemoryBucket):
    """Says that everything is there already, and then that nothing is."""

    def create(self, name: str, data: bytes, *, content_type: str = "application/json") -> bool:
        return False

    def read(self, name: str, *, largest: int = 0) -> Blob | None:
        return None


def test_an_event_that_is_neither_stored_nor_there_is_not_reported_as_appended() -> None:
    with pytest.raises(Unavailable, match="not found"):
        log(ForgetfulBucket()).append(phase("a"))


class SlowListing(MemoryBucket):
    """Lists objects that cannot be read yet."""

    ready: bool = False

    def read_many(self, names: Sequence[str], **limits: int) -> Mapping[str, Blob]:
        return super().read_many(names, **limits) if self.ready else {}


def test_an_event_that_could_not_be_read_is_asked_for_again() -> None:
    bucket = SlowListing()
    event = log(bucket, "vm-1").append(phase("a"))
    ours = log(bucket)
    assert ours.read() == ()
    bucket.ready = True
    assert ours.read() == (event,)


def test_the_stored_bytes_are_the_encoded_event(bucket: Bucket, tmp_path: Path) -> None:
    event = log(bucket).append(phase("a"))
    blob = bucket.read(event.object_name)
    assert blob.data == encode_event(event)


def junk(bucket: Bucket, writer: str, count: int, kind: str = "healed", data: bytes = b'{"schema": 1}') -> None:
    machine = log(bucket, writer)
    event = machine.append(phase("a"))
    for number in range(count):
        at = event.object_name.replace("-000001-phase_started", f"-{number + 2:06d}-{kind}")
        bucket.create(at, data)


MACHINE_KINDS = sorted(kind for kind, fact in ev.FACTS.items() if not issubclass(fact, ev.ClientFact))
BOUNDS = EventBounds(cases=12, implementations=3)


@pytest.mark.parametrize("kind", [*MACHINE_KINDS, "settled", "of_tomorrow"])
def test_of_a_machine_no_more_is_read_than_its_plan_can_give_rise_to(kind: str) -> None:
    """Each read costs money and time, and a machine can write a thousand objects a second."""
    bucket = MemoryBucket()
    log(bucket).append(planned(cases=BOUNDS.cases, implementations=("a", "b", "c")))
    junk(bucket, "vm-1-deadbeef", 3000, kind)
    bucket.calls = 0
    ours, counted = log(bucket, "client-000002"), kind if kind in MACHINE_KINDS else OTHER
    assert [event.writer for event in ours.read()] == ["client-000001", "vm-1-deadbeef"]
    assert bucket.calls <= BOUNDS.most(counted) + 3 <= 203
    assert len(ours.undecodable) == 3000
    for _ in range(2):
        bucket.calls = 0
        ours.read()
        assert bucket.calls == 1, "a client that follows the run reads no more of it each time"


def test_of_a_machine_no_more_bytes_are_read_than_any_run_writes() -> None:
    bucket = MemoryBucket()
    log(bucket).append(planned(cases=1000, implementations=("a",)))
    each = BYTES_OF_A_MACHINE // 100
    junk(bucket, "vm-1-deadbeef", 300, "case_measured", b"x" * each)
    bucket.calls = 0
    assert len(log(bucket, "client-000002").read()) == 2
    assert 90 <= bucket.calls <= 103


def test_every_event_that_a_machine_writes_in_a_run_with_reboots_is_read() -> None:
    """Each kind as often as an agent writes it that begins again, and finds every implementation wrong twice."""
    bucket, clock = MemoryBucket(), SimulatedClock()
    log(bucket, clock=clock).append(planned(cases=BOUNDS.cases, implementations=("a", "b", "c")))
    each = {kind: BOOTS * count for kind, count in OF_A_BOOT.items() if kind != OTHER}
    each |= {"case_started": 2 * 12, "case_measured": 12, "case_observed": 9 * 12, "case_checked": 2 * 3 * 12}
    each |= {"kept": 100, "lent": 100}
    assert each.keys() == set(MACHINE_KINDS) == COUNTED - {OTHER}
    machine = log(bucket, "vm-1-0a", clock)
    for kind, count in each.items():
        for _ in range(count):
            machine.append(Unrecognised(name=kind))
    assert len(log(bucket, "client-000002").read()) == 1 + sum(each.values())


@pytest.mark.parametrize("writer", ["vm-7-deadbeef", "host-1", "eve"])
def test_nothing_is_read_of_a_machine_that_nobody_requested_or_another_writer(writer: str) -> None:
    bucket = MemoryBucket()
    log(bucket).append(BudgetHeld(hold_usd="0.1"))
    junk(bucket, writer, 50)
    bucket.calls = 0
    ours = log(bucket, "client-000002")
    assert len(ours.read()) == 1
    assert (bucket.calls, len(ours.undecodable)) == (2, 51)


@pytest.mark.parametrize("writer", ["vm-1-deadbeef", "vm-9-deadbeef", "host-1", "eve", "Z"])
def test_a_million_junk_names_hide_no_clients_event_and_cost_a_few_pages(writer: str) -> None:
    bucket = CrowdedBucket(MemoryBucket(), RUN, writer=writer)
    stop = log(bucket).append(StopRequested(by="ada", reason="enough"))
    machine = log(bucket, "vm-1-00000001").append(phase("a"))
    ours = log(bucket, "client-000002")
    events = ours.read()
    assert stop in events
    assert writer == "vm-1-deadbeef" or machine in events, "another writer's junk hides no machine"
    assert bucket.spent_s < 10
    assert bucket.reads <= EventBounds().most("healed") + 2
    first = bucket.spent_s
    assert ours.read() == events
    assert bucket.spent_s - first < first, "and fewer pages the next time"


def test_a_log_of_more_objects_than_are_listed_at_once_is_read_as_a_whole(bucket: Bucket) -> None:
    clock = SimulatedClock()
    log(bucket, clock=clock).append(planned(cases=1000))
    log(bucket, "client-000003", clock).append(requested(attempt=2))
    few = EventLog(bucket, RUN, "client-000002", clock, listed_at_once=4)
    for writer in ("vm-1-0a", "boot-1-0a", "vm-2-0b", "vm-3-0c", "eve"):
        for number in range(3):
            log(bucket, f"{writer}{number}" if writer != "eve" else writer, clock).append(phase("a"))
            clock.sleep(1)
    whole = [event.writer for event in few.read()]
    assert len(whole) == 2 + 9
    assert not {writer for writer in whole if writer.startswith(("vm-3", "eve"))}


def test_junk_of_one_kind_or_of_made_up_kinds_crowds_out_no_event_of_a_case() -> None:
    memory, clock = MemoryBucket(), SimulatedClock()
    log(memory, clock=clock).append(planned(cases=3))
    for number in range(600):
        name = f"20200101T000000.000000Z-vm-1-0a-{number:06d}-{'healed' if number % 3 else f'kind_{chr(97 + number % 26)}'}"
        memory.create(f"{events_prefix(RUN)}{name}.json", b"{}")
    clock.sleep(5)
    measured = log(memory, "vm-1-0a", clock).append(CaseStarted(case_id="b1", index=1, of=3))
    memory.calls = 0
    assert measured in log(memory, "client-000002").read()
    assert memory.calls <= 64 + 64 + 4

"""Laws of a VM that is kept: it waits through its slot, serves the next run in the same place, and always goes."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.patience import await_truth
from tests.unit.startup.cloud import BUCKET, RUN, VM, Cloud
from tests.unit.startup.conducted import Conducted
from tests.unit.startup.machine import CASES, Machine, payload, run_spec, stub

NEXT = "20261121-050607-l4-0002"
SLOT = f"machines/{VM}.json"
QUICK = {"keep_poll_s": 0.05}


def kept_cloud(limit_s: float = 120, **spec: Any) -> Cloud:
    timing = {**QUICK, **spec.pop("timing", {})}
    return Cloud(run_spec(keep={"idle_limit_s": limit_s}, timing=timing, **spec), payload())


def slot(cloud: Cloud) -> dict[str, Any]:
    return dict(json.loads(cloud.objects.get(SLOT, b"{}")))


def waits(cloud: Cloud) -> bool:
    return slot(cloud).get("state") == "idle" and "kept" in cloud.kinds()


def claim(cloud: Cloud, run_id: str = NEXT, *, sha256: str = "", name: str = "", **spec: Any) -> None:
    """What a client does: the slot, with a claim in it, if it is idle."""
    with cloud.lock:
        there = slot(cloud)
        assert there["state"] == "idle"
        sha256 = sha256 or cloud.sha256
        wish = {
            "run_id": run_id,
            "by": "ada",
            "spec": {**run_spec(timing=QUICK, **spec), "run_id": run_id, "taken": {"owner": RUN, "deadline_at": None}},
            "payload": {"bucket": BUCKET, "object": name or f"payloads/{sha256}.tar.gz", "sha256": sha256},
        }
        cloud.objects[SLOT] = json.dumps({**there, "state": "claimed", "claim": wish}).encode()
        cloud.generations[SLOT] += 1


def as_soon_as_idle(cloud: Cloud, act: Callable[[], None]) -> None:
    """Has something befall the slot before the VM hears that it waits: however short its limit is, it is not over."""

    def stored(name: str) -> None:
        if name == SLOT:
            cloud.on_stored = lambda _: None
            act()

    cloud.on_stored = stored


def kinds(cloud: Cloud, run_id: str) -> list[str]:
    return [event["kind"] for event in cloud.events(run_id)]


@contextmanager
def waiting(tmp_path: Path, **spec: Any) -> Iterator[tuple[Cloud, Machine]]:
    """A kept VM that waits for a claim."""
    with kept_cloud(**spec) as cloud, Machine(cloud, tmp_path) as machine:
        await_truth(lambda: waits(cloud))
        yield cloud, machine


def assert_gone(cloud: Cloud, machine: Machine, outcome: str = "succeeded", code: int = 0) -> None:
    """Wait for its end: its run has one last word, what it came to when its work was done; then the VM deleted itself."""
    assert machine.wait() == code
    assert [data["outcome"] for data in cloud.said("finished")] == [outcome]
    assert cloud.kinds()[-1] == "finished"
    assert cloud.journal[-1] == "DELETE instance"
    assert cloud.deleted == 1
    machine.leaves_nothing()


def test_a_kept_vm_that_nobody_claims_shuts_its_slot_and_goes_at_its_limit(tmp_path: Path) -> None:
    with kept_cloud(0.5) as cloud, Machine(cloud, tmp_path) as machine:
        await_truth(lambda: cloud.said("kept"))
        since = time.monotonic()
        assert_gone(cloud, machine)
        assert time.monotonic() - since < 300
        assert slot(cloud)["state"] == "closed"
        assert cloud.said("kept") == [
            {"outcome": "succeeded", "exit_code": 0, "detail": "every case is measured", "idle_limit_s": 0.5}
        ]


def claimed_and_given_back(cloud: Cloud) -> None:
    """What a client does that is interrupted as it claims the slot: then nobody has claimed it."""
    claim(cloud, "20261121-050607-l4-0003")
    with cloud.lock:
        cloud.objects[SLOT] = json.dumps({**slot(cloud), "state": "idle", "claim": None}).encode()
        cloud.generations[SLOT] += 1


def test_a_withdrawn_claim_keeps_the_vm_waiting_no_longer_than_its_limit(tmp_path: Path) -> None:
    with kept_cloud(0.5) as cloud:
        as_soon_as_idle(cloud, lambda: claimed_and_given_back(cloud))
        with Machine(cloud, tmp_path) as machine:
            assert_gone(cloud, machine)
            assert slot(cloud)["state"] == "closed"
            assert kinds(cloud, NEXT) == []


def test_a_claim_that_is_taken_back_leaves_the_vm_to_the_next_one(tmp_path: Path) -> None:
    with kept_cloud() as cloud:
        as_soon_as_idle(cloud, lambda: claimed_and_given_back(cloud))
        with Machine(cloud, tmp_path) as machine:
            await_truth(lambda: waits(cloud))
            claim(cloud)
            assert_gone(cloud, machine)
            assert kinds(cloud, NEXT)[-1] == "finished"


def test_a_kept_vm_serves_a_claim_in_the_same_place_and_then_goes(tmp_path: Path) -> None:
    with waiting(tmp_path) as (cloud, machine):
        before = machine.await_file("worker")
        claim(cloud)
        await_truth(lambda: "vm_booted" in kinds(cloud, NEXT))
        assert_gone(cloud, machine)
        assert kinds(cloud, NEXT)[0] == "machine_taken"
        assert kinds(cloud, NEXT)[-1] == "finished"
        assert cloud.said("lent") == [{"to": NEXT}]
        for case in CASES:
            assert f"runs/{NEXT}/cases/{case}.csv" in cloud.objects
        assert f"runs/{NEXT}/artifacts/environment.json" in cloud.objects
        log = cloud.objects[f"runs/{NEXT}/artifacts/log.txt"].decode()
        assert "kept: waiting" not in log, "a run's log is its own"
        assert "finish: succeeded" in log
        assert before > 0


LATE_TEE = f"""exec {sys.executable} -I -S -c '
import sys, time
with open(sys.argv[1], "ab", buffering=0) as log:
    for line in sys.stdin.buffer:
        if b"claimed by" in line:
            time.sleep(2)
        log.write(line)
' "$3"
"""
"""It copies what it reads to log.txt, but is late with the last line of the VM's own run."""


def test_the_log_of_a_run_on_a_kept_vm_begins_with_its_own_first_line(tmp_path: Path) -> None:
    stub(tmp_path / "bin", "tee", LATE_TEE)
    with waiting(tmp_path) as (cloud, machine):
        claim(cloud)
        assert machine.wait() == 0
        assert f"claimed by {NEXT}" in machine.vm_file("log.txt").read_text()
        log = cloud.objects[f"runs/{NEXT}/artifacts/log.txt"].decode()
        assert "claimed by" not in log
        assert log.splitlines()[0].endswith("preflight (at most 600 s)")


def test_a_vm_is_kept_for_as_long_as_each_run_on_it_asks_for_it(tmp_path: Path) -> None:
    with kept_cloud() as cloud, Machine(cloud, tmp_path) as machine:
        for run_id, again in ((NEXT, True), ("20261121-050607-l4-0003", False)):
            await_truth(lambda: slot(cloud).get("state") == "idle")
            claim(cloud, run_id, **({"keep": {"idle_limit_s": 120}} if again else {}))
            await_truth(lambda run_id=run_id: "finished" in kinds(cloud, run_id))
        assert_gone(cloud, machine)
        told = [kind for kind in cloud.kinds() if kind in ("kept", "lent", "finished")]
        assert told == ["kept", "lent", "kept", "lent", "finished"]


def test_a_claim_with_another_payload_runs_that_payload(tmp_path: Path) -> None:
    import gzip
    import hashlib

    # The same archive in another compression: other bytes, another name, the same agent.
    other = gzip.compress(gzip.decompress(payload()), compresslevel=1, mtime=1)
    sha256 = hashlib.sha256(other).hexdigest()
    with kept_cloud() as cloud, Machine(cloud, tmp_path) as machine:
        assert sha256 != cloud.sha256
        cloud.objects[f"payloads/{sha256}.tar.gz"] = other
        await_truth(lambda: waits(cloud))
        claim(cloud, sha256=sha256)
        assert_gone(cloud, machine)
        assert kinds(cloud, NEXT)[-1] == "finished"
        manifest = json.loads(machine.vm_file(f"payload-{sha256[:16]}/manifest.json").read_text())
        assert manifest["payload_sha256"] == sha256


def test_a_claim_whose_payload_is_not_what_its_name_says_is_not_run_and_the_vm_goes(tmp_path: Path) -> None:
    with waiting(tmp_path) as (cloud, machine):
        cloud.objects[f"payloads/{'e' * 64}.tar.gz"] = b"something else"
        claim(cloud, sha256="e" * 64)
        assert_gone(cloud, machine)
        assert kinds(cloud, NEXT) == []


@pytest.mark.parametrize("name", [f"runs/{RUN}/artifacts/x.tar.gz", "payloads/x.tar.gz", "payloads/../runs/x.tar.gz"])
def test_a_claim_whose_payload_lies_where_a_machine_may_write_is_not_run(tmp_path: Path, name: str) -> None:
    """Whoever may write the slot could else have another machine run what it likes."""
    with kept_cloud(1.0) as cloud:
        cloud.objects[name] = cloud.payload
        as_soon_as_idle(cloud, lambda: claim(cloud, name=name))
        with Machine(cloud, tmp_path) as machine:
            assert_gone(cloud, machine)
            assert "the claim cannot be read" in machine.serial()
            assert kinds(cloud, NEXT) == []
            assert not any(name in line for line in cloud.requests)


@pytest.mark.parametrize(
    "data",
    [b"\xff", b"[" * 60_000, b"[1]", b'{"state": "claimed"}', b'{"state": "claimed", "idle_until": 1, "claim": 2}'],
)
def test_a_slot_that_somebody_has_spoilt_is_no_claim_and_the_vm_goes_at_its_limit(tmp_path: Path, data: bytes) -> None:
    def spoil() -> None:
        with cloud.lock:
            cloud.objects[SLOT] = data
            cloud.generations[SLOT] += 1

    with kept_cloud(1.0) as cloud:
        as_soon_as_idle(cloud, spoil)
        run = Conducted(cloud, tmp_path)
        assert run.code == 0
        assert cloud.kinds()[-1] == "finished"
        assert run.has_last_word


def test_a_run_that_failed_does_not_keep_its_vm(tmp_path: Path) -> None:
    with kept_cloud(script={"build": [{"exit": 1}]}) as cloud, Machine(cloud, tmp_path) as machine:
        assert_gone(cloud, machine, "failed", 1)
        assert "kept" not in cloud.kinds()
        assert SLOT not in cloud.objects


def test_an_incorrect_run_keeps_its_vm_and_stays_incorrect(tmp_path: Path) -> None:
    wrong = {
        "correctness": [
            {"say": {"fact": "correctness", "path": "correctness.csv", "checked": 2, "failed": 1}},
            {"exit": 10},
        ]
    }
    with kept_cloud(0.3, script=wrong) as cloud, Machine(cloud, tmp_path) as machine:
        assert_gone(cloud, machine, "incorrect", 10)
        assert cloud.said("kept")[0]["outcome"] == "incorrect"


def test_a_kept_vm_that_is_asked_to_stop_goes_at_once(tmp_path: Path) -> None:
    with waiting(tmp_path) as (cloud, machine):
        os.kill(machine.process.pid, signal.SIGTERM)
        assert_gone(cloud, machine)
        assert slot(cloud)["state"] == "closed"


def test_a_kept_vm_that_is_preempted_says_so_and_goes(tmp_path: Path) -> None:
    with waiting(tmp_path) as (cloud, machine):
        cloud.preempt()
        assert_gone(cloud, machine)
        assert "preempted" in cloud.kinds()


def test_the_watchdog_ends_a_vm_that_waits_ahead_of_its_deadline(tmp_path: Path) -> None:
    with kept_cloud() as cloud, Machine(cloud, tmp_path).hold_time() as machine:
        await_truth(lambda: waits(cloud))
        machine.time_is_up()
        assert_gone(cloud, machine)
        assert machine.vm_file("deadline").exists()


def test_an_agent_that_dies_while_it_waits_leaves_a_vm_that_deletes_itself(tmp_path: Path) -> None:
    with waiting(tmp_path) as (cloud, machine):
        os.kill(machine.await_file("worker"), signal.SIGKILL)
        machine.wait()
        assert cloud.kinds()[-1] == "vm_exiting"
        assert cloud.journal[-1] == "DELETE instance"


def test_an_agent_that_dies_at_another_run_leaves_a_vm_that_deletes_itself(tmp_path: Path) -> None:
    with waiting(tmp_path) as (cloud, machine):
        claim(cloud, script={"measure": [{"kill_parent": True}]})
        machine.wait()
        assert kinds(cloud, NEXT)[0] == "machine_taken"
        assert "finished" not in kinds(cloud, NEXT)
        assert cloud.journal[-1] == "DELETE instance"
        machine.leaves_nothing()


def test_a_failing_guest_ends_as_failed_and_the_vm_goes_with_its_own_run(tmp_path: Path) -> None:
    with waiting(tmp_path) as (cloud, machine):
        claim(cloud, script={"build": [{"exit": 1}]}, keep={"idle_limit_s": 20})
        assert_gone(cloud, machine, code=1)
        last = cloud.events(NEXT)[-1]
        assert (last["kind"], last["data"]["outcome"]) == ("finished", "failed")


@pytest.mark.parametrize("cut", ["before", "after"])
def test_a_slot_whose_answers_are_lost_changes_hands_all_the_same(tmp_path: Path, cut: str) -> None:
    with kept_cloud(1.0) as cloud:
        fault = cloud.fail(f"POST .*{SLOT}", cut=cut, times=2)
        with Machine(cloud, tmp_path) as machine:
            assert_gone(cloud, machine)
            assert fault.fired == 2
            assert slot(cloud)["state"] == "closed"


def test_a_bucket_slower_than_the_short_limit_does_not_keep_the_vm_from_being_kept(tmp_path: Path) -> None:
    with kept_cloud(0.5) as cloud:
        fault = cloud.fail(f"POST .*{SLOT}", stall_s=3)
        with Machine(cloud, tmp_path) as machine:
            assert_gone(cloud, machine)
            assert fault.fired == 1
            assert len(cloud.said("kept")) == 1
            assert slot(cloud)["state"] == "closed"


def test_a_claim_is_served_though_the_bucket_did_not_answer_while_the_limit_lasted(tmp_path: Path) -> None:
    with kept_cloud(1.0) as cloud:
        as_soon_as_idle(cloud, lambda: claim(cloud))
        fault = cloud.fail(f"GET .*{VM}.json", stall_s=5)
        with Machine(cloud, tmp_path) as machine:
            assert_gone(cloud, machine)
            assert fault.fired == 1
            assert kinds(cloud, NEXT)[-1] == "finished"


def test_an_ending_vm_closes_its_slot_though_it_missed_a_withdrawn_claim(tmp_path: Path) -> None:
    with waiting(tmp_path, timing={"keep_poll_s": 3600}) as (cloud, machine):
        claimed_and_given_back(cloud)
        os.kill(machine.process.pid, signal.SIGTERM)
        assert_gone(cloud, machine)
        assert slot(cloud)["state"] == "closed"


def test_a_bucket_that_is_away_ends_the_wait_like_the_limit(tmp_path: Path) -> None:
    with waiting(tmp_path, limit_s=1.0) as (cloud, machine):
        cloud.fail(f"GET .*{VM}.json", status=503, times=1000)
        assert_gone(cloud, machine)


def test_a_claim_at_the_very_end_is_served_and_not_lost(tmp_path: Path) -> None:
    """The VM looks for the last time, a client claims, and the VM shuts the slot: the bucket says who was first."""
    # The VM polls less often than its limit is long: it never looks at the slot before it shuts it.
    with kept_cloud(1.0, timing={"keep_poll_s": 5}) as cloud:
        as_soon_as_idle(cloud, lambda: claim(cloud))
        with Machine(cloud, tmp_path) as machine:
            assert_gone(cloud, machine)
            assert kinds(cloud, NEXT)[-1] == "finished"


def test_a_slot_that_is_somebody_elses_is_left_alone(tmp_path: Path) -> None:
    with kept_cloud() as cloud:
        cloud.objects[SLOT] = b'{"state": "idle"}'
        run = Conducted(cloud, tmp_path)
        assert run.code == 0
        assert cloud.objects[SLOT] == b'{"state": "idle"}'
        assert "kept" not in cloud.kinds()
        assert cloud.kinds()[-1] == "finished"
        assert run.has_last_word


def test_a_claim_that_makes_no_sense_is_passed_over_and_the_vm_goes_at_its_limit(tmp_path: Path) -> None:
    def nonsense() -> None:
        with cloud.lock:
            cloud.objects[SLOT] = json.dumps({**slot(cloud), "state": "claimed", "claim": {"run_id": NEXT}}).encode()
            cloud.generations[SLOT] += 1

    with kept_cloud(1.0) as cloud:
        as_soon_as_idle(cloud, nonsense)
        run = Conducted(cloud, tmp_path)
        assert run.code == 0
        assert "cannot be read" in run.console.getvalue()
        assert cloud.kinds()[-1] == "finished"

"""A bucket full of runs that never happened, as clients and machines would have left it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from orchestrator.cli.site_build import Source
from orchestrator.core.errors import NotFound
from orchestrator.core.ledger.budget import Caps, HoldTerms, Ledger, add_cost, hold, settle
from orchestrator.core.naming import artifacts_prefix, cases_prefix, run_id
from orchestrator.core.run import events as ev
from orchestrator.core.run.fold import Run, replay
from orchestrator.core.run.status import encode_status, status_body, status_line
from orchestrator.ports import Bucket
from orchestrator.report.site.site import Money
from orchestrator.store.index import RunIndex
from tests.unit.report.written import ENVIRONMENT, csv_text, records

BEGUN = datetime(2026, 11, 1, 4, 5, 6, tzinfo=UTC)
DEVICES = {
    "l4": ("NVIDIA L4", "0.2569", 1.0),
    "t4": ("Tesla T4", "0.1610", 0.4),
    "h100": ("NVIDIA H100", "2.2900", 6.0),
}
SPEEDS = {"bench": 1.5, "sdpa:default": 1.0, "sdpa:math": 0.5, "bench:aa": 1.5}


def names(number: int, gpu: str = "l4", *, apart: timedelta = timedelta(hours=3), first: datetime = BEGUN) -> str:
    return run_id(first + apart * number, gpu, f"{number:04x}")


def store(
    bucket: Bucket,
    number: int,
    *,
    gpu: str = "l4",
    lengths: Sequence[int] = (128, 1024),
    blocks: int = 20,
    faster: float = 1.0,
    outcome: str = "succeeded",
    open_: bool = False,
    detail: str = "",
    user: str = "ada",
    mode: str = "gce",
    environment: dict[str, Any] | None = None,
    first: datetime = BEGUN,
    events: bool = False,
    **changes: str,
) -> str:
    """Stores one run and returns its id: its cases, its environment, and its line in the index. `faster`: so many times
    as fast as others was its kernel. `first`: when run 0 began; the others follow every three hours."""
    device, price, speed = DEVICES[gpu]
    device = changes.pop("device", device)
    run = names(number, gpu, first=first)
    begun = first + timedelta(hours=3) * number
    vm, machine = f"bench-{run}-1", "vm-1-0a1b2c3d"
    speeds = {name: each * speed * (faster if name.startswith("bench") else 1) for name, each in SPEEDS.items()}
    rows: dict[str, list[dict[str, str]]] = {}
    if outcome == "succeeded":
        made = records(run_id=run, device=device, speeds=speeds, lengths=lengths, blocks=blocks, seed=number, **changes)
        for row in made:
            rows.setdefault(row["case_id"], []).append(row)
    for case, own in rows.items():
        bucket.create(f"{cases_prefix(run)}{case}.csv", csv_text(own).encode(), content_type="text/csv")
    told = ENVIRONMENT | {"device": device, "payload_sha256": f"{number // 40:064x}"} | (environment or {})
    if rows:
        bucket.create(f"{artifacts_prefix(run)}environment.json", json.dumps(told).encode())
        bucket.create(f"{artifacts_prefix(run)}build.json", b'{"compiler_version": "nvrtc 13.0"}')
    facts: list[tuple[str, ev.Fact]] = [
        ("client-000000", ev.RunPlanned(
            gpu=gpu, config=gpu, user=user, mode=mode, ceiling_usd=Decimal("0.18"), ttl_s=1800, attempts=1,
            cases=max(len(lengths), 1), measurements_per_implementation=600)),
        ("client-000000", ev.InstanceRequested(
            attempt=1, vm=vm, zone="us-central1-a", machine_type="g2-standard-4", provisioning="spot",
            usd_per_hour=Decimal(price), max_run_s=1800, request_id=f"r-{number}")),
        ("client-000000", ev.InstanceCreated(
            attempt=1, vm=vm, zone="us-central1-a", instance_id="123", started_at=begun + timedelta(seconds=20),
            deadline_at=begun + timedelta(minutes=30))),
        (machine, ev.VmBooted(vm=vm, attempt=1, zone="us-central1-a")),
        (machine, ev.PhaseStarted(phase="measure")),
        (machine, ev.EnvironmentRecorded(device=device, device_kind="cuda")),
    ]  # fmt: skip
    facts += [
        (machine, ev.CaseMeasured(case_id=case, index=place, of=len(lengths), rows=len(own), seconds=3))
        for place, (case, own) in enumerate(rows.items(), 1)
    ]
    if not open_:
        ended = begun + timedelta(minutes=6)
        facts += [
            (machine, ev.PhaseFinished(phase="measure", exit_code=0, seconds=60)),
            ("client-000000", ev.InstanceGone(attempt=1, vm=vm, ended_at=ended, how="deleted",
                                              started_at=begun + timedelta(seconds=20))),
            ("client-000000", ev.Settled(cost_usd=Decimal(price) / 10, released_usd=Decimal("0.1"))),
            ("client-000000", ev.RunClosed(outcome=outcome, detail=detail)),
        ]  # fmt: skip
    log = [
        ev.Event(run_id=run, time=begun + timedelta(seconds=5 * seq), writer=writer, seq=seq, fact=fact)
        for seq, (writer, fact) in enumerate(facts, 1)
    ]
    state = replay(log)
    assert state is not None
    if open_ or events:
        for event in log:
            bucket.create(event.object_name, ev.encode_event(event))
    at = state.updated_at
    RunIndex(bucket).write(run, encode_status(status_line(state, at)), status_body(state, at))
    return run


def many(bucket: Bucket, numbers: Iterable[int], *, lengths: Sequence[int] = (128, 1024), blocks: int = 20) -> None:
    """Runs on three devices; the kernel gets faster at every 40th, and some runs fail."""
    gpus = tuple(DEVICES)

    def one(number: int) -> None:
        outcome = "failed" if number % 17 == 16 else "succeeded"
        detail = "the driver did not come up" if outcome == "failed" else ""
        faster, user = 1.06 ** (number // 40), ("ada", "grace")[number % 2]
        store(bucket, number, gpu=gpus[number % 3], lengths=lengths, blocks=blocks, faster=faster, outcome=outcome,
              detail=detail, user=user)  # fmt: skip

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, numbers))


def looking(bucket: Bucket) -> Callable[[str], Run]:
    """A run as its stored events tell it."""

    def look(run: str) -> Run:
        found = [ev.decode_event(blob.data) for entry in bucket.list(f"runs/{run}/events/")
                 if (blob := bucket.read(entry.name)) is not None]  # fmt: skip
        state = replay(sorted((one for one in found if one is not None), key=lambda one: one.time))
        if state is None:
            raise NotFound(f"there is no run {run}")
        return state

    return look


def ledger() -> Ledger:
    found = hold(Ledger(), names(0), Decimal("0.18"), 1800, BEGUN, HoldTerms("l4"))
    found = settle(found, names(0), Decimal("0.025"), BEGUN)
    return add_cost(found, "ai", Decimal("1.50"), "a <note> & more", BEGUN, "cost-1")


def source(bucket: Bucket, now: datetime = BEGUN + timedelta(days=20)) -> Source:
    caps = Caps(day=Decimal("5"), month=Decimal("50"))
    return Source(bucket, looking(bucket), lambda: now, lambda: Money(ledger(), caps))

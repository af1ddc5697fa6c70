"""A run goes on: one whose client is gone, or one that was over before everything was measured.

The bucket says what was to be measured and what is done; what it may cost, and what is run, the client says that
resumes it (`core.plan.resumption`). A run that is still open goes on under its hold. One that is over was settled: it
takes a new hold, on the day on which it is resumed.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, replace

from orchestrator.core.config.model import Config
from orchestrator.core.errors import ConfigError, NotFound
from orchestrator.core.ledger.budget import window_exposure
from orchestrator.core.market.catalog import launch_command
from orchestrator.core.naming import SHORTEST_DIGEST, Mode, hold_key, payload_object, plan_object
from orchestrator.core.plan.plan import LaunchPlan
from orchestrator.core.plan.resumption import plan_differences, plan_from, resumed_config, resumed_on_hosts, same_image
from orchestrator.core.run import events as ev
from orchestrator.core.run.fold import Phase, Run, replay
from orchestrator.core.text import Newer, clean_line, count, parse_document
from orchestrator.ports import PAYLOAD_BYTES, Bucket
from orchestrator.runs.engine import Engine, World, with_confirmed_claim
from orchestrator.runs.holds import check
from orchestrator.runs.launch import (
    LaunchContext,
    PayloadSource,
    RunOrder,
    ended_unless_it_begins,
    engine_for,
    hold_request,
    store_payload,
    take_hold,
)
from orchestrator.runs.planning import RentedFrom, plan_on_cloud

# A run goes on by a plan of today's: of the one in the bucket only what is measured is believed.


def replan_run(
    world_for: Callable[[Config], World],
    today: Config,
    stored: LaunchPlan,
    run_id: str,
    site: RentedFrom,
    *,
    accepted: bool = False,
    say: Callable[[str], None],
) -> LaunchPlan:
    """The plan under which `run_id` goes on: `today`'s limits, caps, prices and channels, and what `stored` measures;
    on the machines that `stored` chose only if the user has `accepted` it. Raises as `plan_on_cloud`."""
    if stored.mode is Mode.HOST:
        return resumed_on_hosts(today, stored, accepted=accepted)
    world = world_for(today)
    spent = window_exposure(world.ledger.read(), "run", world.clock.now(), run_id=run_id).spent
    config = resumed_config(today, stored, spent, accepted=accepted)
    run = replay(world.log(run_id).read())
    under = hold_key(run_id, run.generation) if run is not None and run.closed is None else ""
    made = plan_on_cloud(world, config, stored.config_name, site, under=under)
    if made.ttl_s < stored.ttl_s - 59:
        say(f"{run_id} had {stored.ttl_s // 60} min; under your present caps and prices it gets {made.ttl_s // 60} min")
    # The hold is judged with all that the run has cost before, so under the whole of today's caps.
    whole_config = made.config.model_copy(update={"budget": today.budget})
    made = replace(made, config=whole_config)
    return same_image(made, stored) if accepted else made


SCRIPT = "startup/startup.sh"


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """The plan of a run, as it is in the bucket, beside the configuration of the client that would resume the run."""

    run_id: str
    plan: LaunchPlan
    digest: str
    today: Config
    is_own: bool
    """Whether this user's own launch stored it, or the user has accepted it before."""

    def consent(self, digest: str, *, is_gpu_named: bool, command: str, confirm: Callable[[str, str], None]) -> bool:
        """Whether all of the plan may be followed: if it is the user's own, or if `digest` names it. Asks by `confirm`
        if it chooses otherwise than today's configuration does; one that chooses alike needs no consent. Raises
        `ConfigError`."""
        short = self.digest[:SHORTEST_DIGEST]
        if digest and not (len(digest) >= SHORTEST_DIGEST and self.digest.startswith(digest)):
            raise ConfigError(
                f"--accept {clean_line(digest, 80)} does not match: the plan of {self.run_id} is {short} in the bucket",
                hint=(
                    "without --accept, the command shows what the plan asks for; give at least "
                    f"{SHORTEST_DIGEST} digits"
                ),
            )
        if self.is_own or digest:
            return True
        differences = plan_differences(self.today, self.plan)
        if not is_gpu_named:
            differences = (f"its GPU is {self.plan.config.gpu}, and none was named", *differences)
        if not differences:
            return False
        confirm(
            f"{self.run_id} was not launched from this computer, and its plan differs from your configuration: "
            f"{'; '.join(differences)}. Follow the plan?",
            f"`{command} --accept {short}`",
        )
        return True


def stored_plan(bucket: Bucket, run_id: str) -> LaunchPlan:
    """As `read_plan`, without the digest."""
    return read_plan(bucket, run_id)[0]


def read_plan(bucket: Bucket, run_id: str) -> tuple[LaunchPlan, str]:
    """The plan of a run, as it is in the bucket, and its digest. It says what was to be measured. What it says of money
    is not believed (`core.plan.resumption`). Raises `NotFound`, `ConfigError`."""
    blob = bucket.read(plan_object(run_id))
    if blob is None:
        raise NotFound(
            f"{run_id} has no plan in the bucket, so it cannot be resumed",
            hint=f"its client died before it stored a plan; {_launch_again(run_id)}",
        )
    try:
        return plan_from(parse_document(blob.data)), hashlib.sha256(blob.data).hexdigest()
    except Newer as exc:
        raise ConfigError(
            f"the plan of {run_id}: {exc}",
            hint=f"use the version of bench that launched it; or {_launch_again(run_id)}",
        ) from exc
    except ValueError as exc:
        raise ConfigError(f"the plan of {run_id} is not JSON", hint=_launch_again(run_id)) from exc


def _launch_again(run_id: str) -> str:
    return f"{launch_command(run_id)} with the options of this run starts a new one"


def resume_run(
    world: World,
    plan: LaunchPlan,
    *,
    run_id: str,
    where: LaunchContext,
    fresh: Callable[[], PayloadSource],
    accept: str = "",
    say: Callable[[str], None] = lambda _: None,
) -> Engine:
    """An engine that takes the run on, by a plan of this client's. `fresh` makes this client's payload; `accept` names
    another by its sha256, or the first twelve digits of it, that may be taken from the bucket.

    Raises `NotFound`, `BudgetExceeded`, and `ConfigError` for a run that has nothing left to do or is of another place.
    """
    log = world.log(run_id)
    found = replay(log.read())
    run = None if found is None else with_confirmed_claim(world, found)
    if run is None:
        raise NotFound(f"run not found: {run_id}", hint="`bench status` lists the runs in this bucket")
    if run.plan is not None and run.plan.mode != where.mode:
        raise ConfigError(
            f"{run_id} was launched in mode {run.plan.mode}, and this client is in mode {where.mode}",
            hint="unset BENCH_PROJECT to use the embedded cloud, or name the project that launched it: "
            f"`bench --project PROJECT launch --resume {run_id}`",
        )
    _check(run)
    if run.payload is None and plan.config.workload is not None:  # its path is the bucket's word, not the user's
        raise ConfigError(
            f"{run_id} cannot be resumed: its workload {plan.config.workload.path} was never stored",
            hint="`bench launch FILE` with the options of this run starts a new one",
        )
    payload = payload_of_run(world, run, fresh, accept)
    generation = run.generation
    again = run.closed is not None or _half_ended(world, run)
    if again:
        generation += 1
        check(world.accounts, hold_request(plan, run_id, generation))  # refused, the run stays as it was
        log.append(ev.RunResumed(generation=generation, attempts=plan.attempts, by=where.user))
    elif run.guest_of is None:
        take_hold(world, plan, run_id, log, generation)  # once more: what the ledger holds counts, not what events say
    engine = engine_for(world, RunOrder(run_id, plan, payload, where), log)
    with ended_unless_it_begins(engine):
        if again:
            engine.write_index(engine.look())  # by now `bench status` lists it as open, and looks after it
            take_hold(world, plan, run_id, log, generation)
        if run.payload is None:
            store_payload(world, payload, log)
    say(f"resuming {run_id}: {run.cases_done} of {count(run.cases_total, 'case')} done")
    return engine


def _half_ended(world: World, run: Run) -> bool:
    """Whether somebody settled the run and died before he closed it: nothing can be held for it in this generation."""
    if run.guest_of is not None or any(vm.open for vm in run.vms):
        return False
    entry = world.ledger.read().runs.get(hold_key(run.run_id, run.generation))
    return entry is not None and entry.settled_usd is not None


def _check(run: Run) -> None:
    if run.closed is None:
        return
    if run.phase in (Phase.SUCCEEDED, Phase.INCORRECT):
        raise ConfigError(
            f"nothing to resume: {run.run_id} has measured all its cases",
            hint=f"`bench fetch {run.run_id}` downloads them",
        )
    if run.phase is Phase.REFUSED:
        raise ConfigError(
            f"{run.run_id} was refused before it began, so it cannot be resumed", hint=_launch_again(run.run_id)
        )
    if not run.over:
        raise ConfigError(
            f"{run.run_id} still has a machine, so it cannot be resumed yet",
            hint=f"`bench status {run.run_id}` shows it and settles the run once the machine is gone",
        )


def payload_of_run(world: World, run: Run, fresh: Callable[[], PayloadSource], accept: str = "") -> PayloadSource:
    """What the run's machines have run so far: a run must not change its kernels half way. Our own, if it is the same;
    one from the bucket only if the user named it, since every machine can write there. Raises `ConfigError`."""
    fresh_payload = fresh()
    if run.payload is None or run.payload.sha256 == fresh_payload.sha256:
        return fresh_payload
    theirs = run.payload.sha256
    if len(accept) < SHORTEST_DIGEST or not theirs.startswith(accept):
        raise ConfigError(
            f"{run.run_id} runs payload {theirs[:12]}, but this installation has payload {fresh_payload.sha256[:12]}",
            hint=(
                "use the version of bench that launched it; or, if you trust that payload: `bench launch --resume "
                f"{run.run_id} --accept-payload {theirs[:SHORTEST_DIGEST]}`"
            ),
        )
    name = payload_object(theirs)
    blob = world.bucket.read(name, largest=PAYLOAD_BYTES)
    if blob is None:
        raise NotFound(f"the payload of {run.run_id} is not in the bucket: {name}", hint=_launch_again(run.run_id))
    if hashlib.sha256(blob.data).hexdigest() != theirs:
        raise ConfigError(
            f"{name} does not have the checksum that its name gives",
            hint=f"delete it from gs://{world.bucket.name}; then {_launch_again(run.run_id)}",
        )
    with tarfile.open(fileobj=io.BytesIO(blob.data), mode="r:gz") as archive:
        script = archive.extractfile(SCRIPT)
        if script is None:
            raise ConfigError(f"{name} has no {SCRIPT}", hint=_launch_again(run.run_id))
        return PayloadSource(theirs, blob.data, script.read().decode("utf-8"))

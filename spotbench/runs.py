"""Plans, launches and finds runs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from orchestrator.api.finding import find_run
from orchestrator.api.outcome import error_of
from orchestrator.api.results import read_report
from orchestrator.core.config.model import Config
from orchestrator.core.errors import ConfigError
from orchestrator.core.run.fold import Phase
from orchestrator.core.run.fold import Run as State
from orchestrator.runs.engine import Engine
from orchestrator.runs.launch import RunOrder, begin_launch
from orchestrator.runs.planning import LaunchOptions, plan_for_launch
from orchestrator.wiring import Wiring, fetch_run, launch_context, new_run_id, payload_of, wire
from spotbench.money import Dollars, dollars, own_words
from spotbench.results import Results, with_files

Say = Callable[[str], None]
Settings = Mapping[str, object]
FOLDER = Path("results/local")


@dataclass(frozen=True, slots=True)
class Plan:
    """What a launch would ask for; nothing is spent or held yet. `ceiling_usd` is the most it can cost, `minutes` the
    longest it can take; `cases` are those that are known before the run; `simulated` says that no dollar is real."""

    gpu: str
    workload: str
    cases: tuple[str, ...]
    ceiling_usd: Dollars
    usd_per_hour: Dollars
    minutes: float
    zones: tuple[str, ...]
    notices: tuple[str, ...]
    simulated: bool


class Run:
    """A run that was begun. It needs no client: what becomes of it is in the bucket, for any process to find."""

    def __init__(self, wiring: Wiring, engine: Engine) -> None:
        self._wiring, self._engine = wiring, engine
        self.id: str = engine.run_id

    def __repr__(self) -> str:
        return f"Run({self.id!r})"

    @property
    def status(self) -> str:
        """Its phase now: `provisioning`, `running`, `succeeded`, `incorrect`, `failed` …"""
        return self._engine.look().phase.value

    @property
    def over(self) -> bool:
        """Whether it has ended, its machine is gone, and its cost is settled."""
        return self._engine.look().closed is not None

    @property
    def cost_usd(self) -> Dollars:
        """What it has cost until now."""
        return Dollars(self._engine.look().cost(self._wiring.clock.now()))

    @own_words()
    def wait(
        self, timeout_s: float | None = None, *, watch: Callable[[str], None] | None = None, into: Path = FOLDER
    ) -> Results:
        """The results, once it is over; `watch` is told each new phase. A run in which an implementation was wrong has
        results like any other, and says why. Raises `TimeoutError` where it goes on beyond `timeout_s`, and for a run
        that ended before its time the error that `bench launch` ends with."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        phase = ""

        def seen(state: State) -> None:
            nonlocal phase
            if watch is not None and state.phase.value != phase:
                watch(state.phase.value)
            phase = state.phase.value

        def enough(state: State) -> bool:
            return state.kept is not None or (until is not None and time.monotonic() > until)

        state = self._engine.follow(watch=seen, until=enough)
        if state.closed is None and state.kept is None:
            raise TimeoutError(f"{self.id} is not over after {timeout_s:g} s; it continues")
        wrong = error_of(state)
        if wrong is not None and state.phase is not Phase.INCORRECT and state.kept is None:
            raise wrong
        return self.results(into)

    def results(self, into: Path = FOLDER) -> Results:
        """What is in the bucket by now, fetched and checked."""
        state = self._engine.look()
        fetched = fetch_run(self._wiring.bucket, state, into)
        return with_files(read_report(fetched.folder), fetched.folder, state.phase.value)

    def stop(self) -> None:
        """End it and delete its machine; what it measured is kept."""
        if not self._engine.look().over:
            self._engine.request_stop(self._wiring.user, f"stopped by {self._wiring.user}")
            self._engine.follow()


@own_words()
def plan(
    workload: str | Path = "", *, gpu: str = "", max_usd: float | str | Decimal | None = None, host: str = "",
    settings: Settings | None = None,
) -> Plan:  # fmt: skip
    """What `launch` with the same words would ask for. Raises what it raises."""
    wiring, config, name = _configured(workload, gpu, max_usd, host, settings)
    made = wiring.plan(config, name)
    return Plan(
        gpu=made.label,
        workload="" if config.workload is None else config.workload.name,
        cases=made.cases,
        ceiling_usd=Dollars(made.ceiling_usd),
        usd_per_hour=Dollars(made.usd_per_hour),
        minutes=made.ttl_s / 60,
        zones=tuple(offer.zone for offer in made.offers),
        notices=made.notices,
        simulated=made.mode.simulated,
    )


@own_words()
def launch(
    workload: str | Path = "", *, gpu: str = "", max_usd: float | str | Decimal | None = None, host: str = "",
    settings: Settings | None = None, say: Say | None = None,
) -> Run:  # fmt: skip
    """Begin a run, and return once its machine is there.

    `workload` is a file, a folder or a configuration, as for `bench launch`; `gpu` names the kind of machine (a
    processor where a workload is given and nothing else); `max_usd` is the most that this run may cost; `host` is a
    machine of your own; `settings` are those of `--set`, by their names: `{"measure.repeats": 20}`. `say` is told what
    goes on; a library prints nothing. Raises `ConfigError` with file and line, `BudgetExceeded` before anything is
    spent, `NoCapacity`.
    """
    wiring, config, name = _configured(workload, gpu, max_usd, host, settings, say)
    payload = payload_of(config)
    world = wiring.world(config)
    made, _ = plan_for_launch(world, config, lambda one: wiring.plan(one, name), cold=True, say=wiring.say)
    run_id = new_run_id(wiring.clock.now(), made.label_on(wiring.here))
    order = RunOrder(run_id, made, payload, launch_context(wiring, made))
    engine = begin_launch(world, order, say=wiring.say, cold=True)
    state = engine.follow(until=lambda run: run.goes_on_alone)
    wrong = error_of(state)
    if wrong is not None and state.cases_done == 0:
        raise wrong
    return Run(wiring, engine)


@own_words()
def find(run: str = "last") -> Run:
    """A run by its id, a unique part of it, or `last`. Raises `NotFound`."""
    wiring = _wired(None)
    return Run(wiring, Engine(wiring.world(), find_run(wiring, run)))


def results(run: str = "last", into: Path = FOLDER) -> Results:
    """What a run has measured by now, fetched and checked. Raises `NotFound`."""
    return find(run).results(into)


def _wired(say: Say | None) -> Wiring:
    wiring = wire()
    wiring.say = say if say is not None else _silent
    return wiring


def _silent(_: str) -> None:
    """A library prints nothing."""


def _configured(
    workload: str | Path, gpu: str, max_usd: float | str | Decimal | None, host: str, settings: Settings | None,
    say: Say | None = None,
) -> tuple[Wiring, Config, str]:  # fmt: skip
    wiring, options = wire_options(workload, gpu, max_usd, host, settings, say)
    config, name = wiring.configured(options)
    return wiring, config, name


def wire_options(
    workload: str | Path, gpu: str, max_usd: float | str | Decimal | None, host: str, settings: Settings | None,
    say: Say | None,
) -> tuple[Wiring, LaunchOptions]:  # fmt: skip
    """The wiring, and the options of the command line for these arguments. Raises `ConfigError`."""
    overrides = [f"{key}={json.dumps(value)}" for key, value in (settings or {}).items()]
    if max_usd is not None:
        overrides.append(f"budget.per_run_usd={dollars(max_usd)}")
    path = Path(workload) if str(workload) else None
    if path is not None and not path.exists():
        raise ConfigError(f"there is no file {path}", hint="`bench docs library` says what launch and plan take")
    return _wired(say), LaunchOptions(gpu, path, tuple(overrides), hosts=(host,) if host else ())

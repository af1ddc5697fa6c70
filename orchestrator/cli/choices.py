"""The options that `launch`, `plan`, `doctor` and others share: what to measure, where, and at what cost."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.config_keys import known_keys
from orchestrator.cli.options import known_gpus
from orchestrator.core.errors import ConfigError
from orchestrator.core.market.catalog import gpu_of
from orchestrator.core.plan.plan import LaunchPlan
from orchestrator.runs.planning import LaunchOptions
from orchestrator.wiring import Wiring

Planner = Callable[[], LaunchPlan]

Gpu = Annotated[
    str,
    typer.Option(
        "--gpu",
        "-g",
        help="GPU to rent: l4, t4, a100, a100-80gb, h100, h200, b200, g4; or cpu.",
        autocompletion=known_gpus,
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Argument(metavar="[FILE]", help="Your own kernel (.py or its folder), or a YAML configuration."),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override one key, e.g. run.max_minutes=10.", autocompletion=known_keys
    ),
]
Hosts = Annotated[
    list[str] | None,
    typer.Option("--host", metavar="USER@BOX[:PORT]", help="Measure on your own machine over SSH; nothing is rented."),
]


@dataclass(frozen=True, slots=True)
class ChoiceParam:
    """What is measured: a configuration, a workload, or the configuration of a GPU."""

    config: ConfigFile = None
    gpu: Gpu = ""


@dataclass(frozen=True, slots=True)
class Terms:
    """Further choices: implementations, configuration keys, the price and the kind of the machine."""

    baseline_only: Annotated[
        bool, typer.Option("--baseline-only", help="Measure the baselines only, not the bundled kernel.")
    ] = False
    set_: Overrides = None
    max_price: Annotated[
        str, typer.Option("--max-price", metavar="USD", help="Use no machine that costs more per hour.")
    ] = ""
    on_demand_after: Annotated[
        int | None,
        typer.Option(
            "--on-demand-after",
            metavar="N",
            min=0,
            help="Use an on-demand machine after N preemptions, or if no spot machine is left.",
        ),
    ] = None
    fallback_gpu: Annotated[
        list[str] | None,
        typer.Option(
            "--fallback-gpu",
            metavar="GPU",
            help="Another GPU to use if the first is not available.",
            autocompletion=known_gpus,
        ),
    ] = None

    @property
    def overrides(self) -> tuple[str, ...]:
        return tuple(self.set_ or ())


AcceptPlan = Annotated[
    str,
    typer.Option("--accept", metavar="SHA256", help="Follow the plan of a run that another computer launched."),
]


def consented_plan(
    wiring: Wiring, typed: str, run_id: str, limits: LaunchOptions, digest: str, command: str
) -> Planner:
    """What makes a plan of the stored one of a run. Asks first if another computer launched the run and its plan
    differs from this user's configuration. Raises `ConfigError`."""
    stored = wiring.stored_plan(run_id, limits)
    named = limits.path is not None or (typed == run_id and stored.plan.config.gpu == gpu_of(run_id))
    accepted = stored.consent(digest, is_gpu_named=named, command=command.format(run_id), confirm=agreed_to)
    return lambda: wiring.plan_again(stored, accepted=accepted)


def agreed_to(question: str, flag: str) -> None:
    """Raises `ConfigError` unless a person at a terminal says yes."""
    if not (sys.stdin.isatty() and typer.confirm(question)):
        raise ConfigError(f"{question} Nobody said yes, so nothing was done", hint=f"{flag} answers yes")


def launch_options(choice: ChoiceParam, terms: Terms, hosts: list[str] | None, *, keep: bool = False) -> LaunchOptions:
    """The same choices as `LaunchOptions`."""
    return LaunchOptions(
        choice.gpu, choice.config, terms.overrides, terms.baseline_only, terms.max_price, terms.on_demand_after,
        tuple(terms.fallback_gpu or ()), keep=keep, hosts=tuple(hosts or ()),
    )  # fmt: skip

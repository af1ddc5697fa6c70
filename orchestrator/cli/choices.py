"""What is to be measured, on what, and at what cost: the options that `launch`, `plan`, `doctor` and others share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.completing import known_gpus
from orchestrator.cli.config_keys import known_keys
from orchestrator.runs.planning import LaunchOptions

Gpu = Annotated[
    str,
    typer.Option(
        "--gpu",
        "-g",
        help="l4, t4, a100, h100 or cpu: takes the configuration of that name.",
        autocompletion=known_gpus,
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Argument(metavar="[FILE]", help="A workload of your own (.py, or its folder), or a YAML file; see configs/."),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override one key, e.g. run.max_minutes=10.", autocompletion=known_keys
    ),
]
Hosts = Annotated[
    list[str] | None,
    typer.Option("--host", metavar="USER@BOX[:PORT]", help="Measure on a machine of your own, over SSH; rent none."),
]


@dataclass(frozen=True, slots=True)
class Choice:
    """What is measured: a configuration, a workload, or the configuration of a GPU."""

    config: ConfigFile = None
    gpu: Gpu = ""


@dataclass(frozen=True, slots=True)
class Terms:
    """Under what terms: which implementations, which keys, what a machine may cost and be."""

    baseline_only: Annotated[
        bool, typer.Option("--baseline-only", help="Measure the baselines only, not the bundled kernel.")
    ] = False
    set_: Overrides = None
    max_price: Annotated[str, typer.Option("--max-price", metavar="USD", help="Leave out what costs more an hour.")] = (
        ""
    )
    on_demand_after: Annotated[
        int | None,
        typer.Option(
            "--on-demand-after",
            metavar="N",
            min=0,
            help="On demand once N spot machines were taken back, or none is left.",
        ),
    ] = None
    fallback_gpu: Annotated[
        list[str] | None,
        typer.Option(
            "--fallback-gpu", metavar="GPU", help="Another GPU if the first cannot be had.", autocompletion=known_gpus
        ),
    ] = None

    @property
    def overrides(self) -> tuple[str, ...]:
        return tuple(self.set_ or ())


def launch_options(choice: Choice, terms: Terms, hosts: list[str] | None, *, keep: bool = False) -> LaunchOptions:
    """The same as the use cases take it."""
    return LaunchOptions(
        choice.gpu, choice.config, terms.overrides, terms.baseline_only, terms.max_price, terms.on_demand_after,
        tuple(terms.fallback_gpu or ()), keep=keep, hosts=tuple(hosts or ()),
    )  # fmt: skip

"""The keys of a configuration, for a shell to offer after --set."""

from __future__ import annotations

from typing import Any, Final

import yaml
from pydantic import BaseModel

from orchestrator.core.config.model import Config, Grid

ABOUT: Final = {
    "gpu": "The GPU to rent: l4, t4, a100, a100-80gb, h100, h200, b200, g4; or cpu.",
    "zones": "The zones that may be tried, in any order; empty: all that have the GPU.",
    "regions": "The regions whose zones may be tried, if no zones are named.",
    "machine.type": "Machine type; empty: the GPU's own.",
    "machine.disk_gb": "Size of the boot disk in GB.",
    "machine.disk_type": "Type of the boot disk.",
    "machine.image_project": "Project of the boot image; empty: the GPU's own.",
    "machine.image_family": "Family of the boot image, of which the newest is taken; empty: the GPU's own.",
    "machine.prepared": "Boot from a valid image of `bench image build`, if there is one.",
    "machine.container": "A container to run in, with its digest; empty: none.",
    "machine.provisioning": "spot (cheaper, may be preempted), flex-start (queued, not preempted) or standard.",
    "machine.external_ip": "Give the machine an address of its own; without one it needs Cloud NAT.",
    "machine.service_account": "The account that the machine runs as; null: the project's default.",
    "machine.network": "The network of the machine.",
    "run.max_minutes": "Minutes after which Google deletes a machine; also what a run can cost.",
    "run.attempts": "How many machines a run may use, one after the other, if they are lost.",
    "run.phase_limits_s": "Limits of single phases in seconds, such as {build: 600}.",
    "run.keep": "Keep the machine for the next launch.",
    "run.idle_minutes": "Minutes that a kept machine waits for a run before it deletes itself.",
    "placement.max_usd_per_hour": "Use no machine that costs more an hour.",
    "placement.on_demand_after": "Use an on-demand machine after so many preemptions; null: never.",
    "placement.wait_minutes": "Minutes to wait for capacity if no machine can be had; 0: the launch ends.",
    "placement.fallback_gpus": "Other GPUs to try, in order, if the first cannot be had.",
    "budget.per_run_usd": "The most that one run may hold and spend; null: no limit.",
    "budget.per_day_usd": "The most that all runs of a day may spend.",
    "budget.per_month_usd": "The most that all runs of a month may spend.",
    "budget.total_usd": "The most that all runs may spend, ever.",
    "alerts.command": "A program to call when a threshold of a cap is reached, or a run ends.",
    "alerts.webhook": "An address that gets the same as JSON.",
    "alerts.done": "Whether they are also called, and the terminal's bell rings, when a run ends.",
    "measure.grid": "The problems to measure: the name of a grid, or one spelt out.",
    "measure.embedded_grid": "The grid for practice; null: the same.",
    "measure.dtypes": "Data types to measure; empty: the grid's own.",
    "measure.embedded_dtypes": "Data types for practice; empty: those of its grid.",
    "measure.implementations": "What is measured: the bundled kernel and PyTorch's.",
    "measure.repeats": "Measurements of each implementation, in each case and regime.",
    "measure.warmup": "Calls before the first measured one; null: until times no longer change.",
    "measure.control": "Measure the first implementation twice, to show how large the noise is.",
    "measure.stop_at_relative_ci": "End a case early, once each ratio is known within this share: 0.01.",
    "measure.case_budget_usd": "End a case early, once the machine has cost this much since it began.",
    "measure.regime": "How calls follow each other: alone (burst), back to back, or in a CUDA graph.",
    "measure.cache": "Whether inputs lie outside the last-level cache (cold) or in it (warm).",
    "measure.seed": "The seed of inputs and of the order of measurements.",
    "measure.threads": "Threads of the CPU; 0: all that the machine has.",
    "correctness.grid": "The problems on which answers are checked before anything is timed.",
    "correctness.embedded_grid": "The same for practice; null: the same.",
    "correctness.dtypes": "Data types to check; empty: the grid's own.",
    "correctness.embedded_dtypes": "The same for practice.",
    "correctness.sanitizer": "A tool of compute-sanitizer under which your own kernels are called once; null: none.",
    "correctness.max_abs_error": "The largest error that passes.",
    "environment.torch": "The version of PyTorch that is installed if the image has none that works.",
    "environment.allow_install": "Whether packages may be installed on the machine.",
    "environment.min_free_gb": "Free disk in GB without which a run does not begin.",
    "host.targets": "Machines of your own: user@box:port, or aliases of ~/.ssh/config.",
    "host.hourly_usd": "What an hour of such a machine counts against the caps.",
    "host.python": "The interpreter there that has torch; empty: python3.",
    "payload.root": "A folder with kernels/ and startup/ to send instead of the bundled ones.",
    "profile.cases": "Cases to profile after the measurements; empty: none.",
    "profile.implementations": "What is profiled; empty: all that is measured.",
    "profile.set": "roofline, full, or trace.",
    "workload.path": "A kernel of your own: its file or folder.",
    "workload.axes": "The values to measure of some axes, such as {rows: [512]}.",
    "workload.answer_limit_s": "Seconds after which a call counts as hung.",
}
"""What each key that a person sets does, in a sentence."""


def walk(section: type[BaseModel], above: str = "") -> list[tuple[str, Any]]:
    """Every key below a section with its default, in plain types; None where there is none."""
    keys: list[tuple[str, Any]] = []
    for name, field in section.model_fields.items():
        if field.exclude or f"{above}{name}" in ("workload.name", "workload.form", "workload.cases"):
            continue  # read from the workload itself
        kinds = (field.annotation, *getattr(field.annotation, "__args__", ()))
        below = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)
        if below is not None and below is not Grid:  # a grid is taken by its name
            keys += walk(below, f"{above}{name}.")
            continue
        value = None if field.is_required() else field.get_default(call_default_factory=True)
        keys.append((f"{above}{name}", _flat(value)))
    return keys


def to_yaml(value: Any) -> str:
    """A value as a configuration has it: `true`, `null`, `[bench]`."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000, sort_keys=False)
    return text.removesuffix("...\n").strip()


def _flat(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str | dict):
        return value
    return list(value) if isinstance(value, tuple) else str(value)


def known_keys(incomplete: str) -> list[str]:
    """Every key with the sign that follows it."""
    return [f"{key}=" for key, _ in walk(Config) if key.startswith(incomplete)]

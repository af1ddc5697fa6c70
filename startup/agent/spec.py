"""The run spec, as the agent reads it from the instance's metadata."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

PHASES = ("preflight", "environment", "build", "correctness", "measure", "finish")


class InvalidSpec(ValueError):
    """The run spec is not valid. The message names the key and what is expected of it."""


@dataclass(frozen=True)
class PhaseTiming:
    """Intervals and limits that are not a phase's, in seconds; the spec's optional `timing` overrides them."""

    request_timeout_s: float = 20.0
    retry_first_s: float = 0.5
    retry_max_s: float = 8.0
    storage_patience_s: float = 180.0
    log_every_s: float = 10.0
    log_lag_s: float = 10.0
    kill_grace_s: float = 5.0
    driver_wait_s: float = 180.0
    driver_poll_s: float = 3.0
    preempted_wait_s: float = 60.0
    preempted_poll_s: float = 1.0
    preempted_ask_s: float = 2.0
    clock_skew_s: float = 5.0
    hurried_finish_s: float = 15.0
    hurried_grace_s: float = 0.5
    keep_poll_s: float = 2.0
    seal_poll_s: float = 3.0


@dataclass(frozen=True)
class RunSpec:
    """What this VM has to do. `harness` is passed on unchanged; sizes are in GB (10^9 bytes)."""

    run_id: str
    vm: str
    attempt: int
    bucket: str
    require_cuda: bool
    limits_s: Mapping[str, float]
    torch: str
    allow_install: bool
    min_free_gb: float
    harness: Mapping[str, Any]
    timing: PhaseTiming
    deadline_s: float = 0.0
    """After so many seconds since its first boot the cloud deletes the VM."""
    idle_limit_s: float = 0.0
    """How long the VM waits for another run after this one, in seconds; 0 for not at all."""
    taken: Mapping[str, Any] = field(default_factory=dict)
    """For a run on a VM that another run kept: `owner` and `deadline_at`."""

    prepare: Mapping[str, Any] = field(default_factory=dict)
    """For a run that makes an image: `ncu` (whether the profiler belongs on it) and `wait_s` (how long to wait for the
    seal)."""

    container: str = ""
    """The image with its digest, in which the agent runs; empty if it runs on the machine itself."""

    @property
    def others(self) -> list[str]:
        """The implementations besides the bundled kernel and its control."""
        return [name for name in self.harness["implementations"] if name not in ("bench", "bench:aa")]


def parse_spec(text: str) -> RunSpec:
    """Reads a run spec of schema 1. Unknown keys are ignored: an older agent must serve a newer client."""
    try:
        raw = json.loads(text)
    except ValueError as error:
        raise InvalidSpec(f"bench-run is not JSON: {error}") from error
    if not isinstance(raw, dict) or raw.get("schema") != 1:
        raise InvalidSpec("bench-run is not a run spec of schema 1")
    try:
        environment = raw.get("environment", {})
        limits = {phase: float(raw["phase_limits_s"][phase]) for phase in PHASES}
        implementations = raw["harness"]["implementations"]
        if not isinstance(implementations, list) or not implementations:
            raise InvalidSpec("harness.implementations of bench-run is not a list of names")
        return RunSpec(
            run_id=str(raw["run_id"]),
            vm=str(raw["vm"]),
            attempt=int(raw["attempt"]),
            bucket=str(raw["bucket"]),
            require_cuda=bool(raw["require_cuda"]),
            limits_s=limits,
            torch=str(environment.get("torch", "")),
            allow_install=bool(environment.get("allow_install", False)),
            min_free_gb=float(environment.get("min_free_gb", 0)),
            harness=raw["harness"],
            timing=read_timing(raw.get("timing", {})),
            deadline_s=float(raw.get("deadline_s", 0)),
            idle_limit_s=float(raw.get("keep", {}).get("idle_limit_s", 0)),
            taken=dict(raw.get("taken", {})),
            prepare=dict(raw.get("prepare", {})),
            container=str(raw.get("container", "")),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, InvalidSpec):
            raise
        raise InvalidSpec(f"bench-run lacks or misspells a key: {type(error).__name__} {error}") from error


def read_timing(raw: Mapping[str, Any]) -> PhaseTiming:
    field_names = {one.name for one in fields(PhaseTiming)}
    return PhaseTiming(**{key: float(value) for key, value in raw.items() if key in field_names})

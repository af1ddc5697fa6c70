"""Whether a host has what a run needs: it is probed before each run, and validated when that is due."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from orchestrator.core.bundled import is_kernel
from orchestrator.core.config.model import Config
from orchestrator.core.errors import HostUnfit
from orchestrator.core.hosts import HostRecord, Lack, Needs, Target, fingerprint, lacks, lacks_packages, why_validate
from orchestrator.hosts.answers import busy
from orchestrator.hosts.cloud import HostCloud


def needs_of(config: Config) -> Needs:
    """What a run of `config` needs on a host."""
    cuda = config.gpu != "cpu"
    compiler = not cuda and any(map(is_kernel, config.measure.implementations))
    return Needs(cuda=cuda, compiler=compiler, min_free_gb=config.environment.min_free_gb)


def admit(
    hosts: HostCloud,
    target: Target,
    probe: Mapping[str, Any],
    config: Config,
    say: Callable[[str], None] = lambda _: None,
) -> None:
    """Checks that a host can measure `config`. Validates it if that is due, and stores the result in the bucket. Raises
    `HostUnfit` for what the host lacks, `NoCapacity` while it measures for another run."""
    needs, name, python = needs_of(config), target.called, config.host.python
    refuse(lacks(probe, needs, name))
    if probe["busy"]:
        raise busy(target, probe["busy"])
    now_is, now = fingerprint(probe), hosts.clock.now()
    record = hosts.record(target.zone)
    due = why_validate(record, now_is, now)
    if not due and record is not None and needs.cuda and "+cpu" in record.torch:
        due = "its GPU was not validated before"
    if due:
        say(f"validating {target}: {due}")
        found = hosts.validate(target, python)
        refuse(lacks_packages(found, needs, name, str(probe["executable"]), config.environment.torch))
        known = {"validated_at": hosts.clock.now(), "fingerprint": now_is, "torch": str(found["torch"])}
    else:
        known = {}

    def change(record: HostRecord) -> HostRecord:
        return record.model_copy(update={**known, "target": str(target), "python": python})

    hosts.remember(target, change)


def refuse(lack: Lack | None) -> None:
    if lack is not None:
        raise HostUnfit(lack.what, hint=lack.remedy)

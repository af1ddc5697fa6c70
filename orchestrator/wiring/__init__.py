"""The composition root: which adapters stand behind which ports. Adapters are loaded when they are first needed."""

from __future__ import annotations

import importlib
import secrets
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from orchestrator.adapters.files import write_atomically
from orchestrator.adapters.settings import load_settings
from orchestrator.core.errors import ConfigError
from orchestrator.core.naming import run_id
from orchestrator.embedded.client import CloudAddress, CloudUnavailable, ask, living
from orchestrator.embedded.client import stop as stop_cloud
from orchestrator.wiring.chosen import configs, configured, forecast, payload_of, utc_now
from orchestrator.wiring.wired import Wiring

if TYPE_CHECKING:
    from orchestrator.adapters import site_server
    from orchestrator.adapters.fetch import Fetched
    from orchestrator.adapters.files import attach, installed
    from orchestrator.adapters.ncu_report import pages_of as ncu_pages
    from orchestrator.adapters.run_folder import lines as csv_lines
    from orchestrator.adapters.run_folder import open_folder
    from orchestrator.adapters.setup import Setup
    from orchestrator.adapters.sql import answered as answered_in_sql
    from orchestrator.adapters.sql import ready as sql_ready
    from orchestrator.adapters.timer import Timer, install_timer_files
    from orchestrator.adapters.workload_files import files_of
    from orchestrator.core.plan.plan import LaunchPlan
    from orchestrator.core.run.fold import Run
    from orchestrator.ports import Bucket, Entry
    from orchestrator.runs.launch import LaunchContext

__all__ = [
    "CloudAddress", "CloudUnavailable", "Fetched", "Setup", "Timer", "Wiring", "answered_in_sql", "ask", "attach",
    "brought", "configs", "configured", "csv_lines", "fetch_run", "files_of", "forecast", "install_timer_files",
    "installed", "launch_context", "living", "load_settings", "ncu_pages", "new_run_id", "open_folder", "payload_of",
    "site_server", "sql_ready", "stop_cloud", "utc_now", "wire", "wire_embedded", "write_atomically",
]  # fmt: skip
HANDED_ON: Final = {
    "Timer": "timer.Timer",
    "answered_in_sql": "sql.answered",
    "attach": "files.attach",
    "csv_lines": "run_folder.lines",
    "files_of": "workload_files.files_of",
    "install_timer_files": "timer.install_timer_files",
    "installed": "files.installed",
    "ncu_pages": "ncu_report.pages_of",
    "open_folder": "run_folder.open_folder",
    "site_server": "site_server",
    "sql_ready": "sql.ready",
}
"""What stands behind no port is handed on from here, as commands import no adapter; it is loaded when it is named."""


def __getattr__(name: str) -> Any:
    if name not in HANDED_ON:
        raise AttributeError(name)
    module, _, inner = HANDED_ON[name].partition(".")
    found = importlib.import_module(f"orchestrator.adapters.{module}")
    return getattr(found, inner) if inner else found


def wire(*, project: str = "", bucket: str = "", needs_bucket: bool = True) -> Wiring:
    settings = load_settings(project=project, bucket=bucket)
    if needs_bucket and settings.project and not settings.bucket:
        raise ConfigError(
            f"project {settings.project} is set but no bucket is",
            hint=f"`bench init --project {settings.project}` creates one; or set BENCH_BUCKET to one that exists",
        )
    return Wiring(settings)


def launch_context(wiring: Wiring, plan: LaunchPlan) -> LaunchContext:
    """The place that a plan's machines are launched into: the user's own hosts, or where this user rents."""
    from orchestrator.core.mode import Mode
    from orchestrator.runs.launch import LaunchContext

    mode = plan.mode if plan.mode is Mode.HOST else wiring.mode
    return LaunchContext(
        mode=mode,
        bucket=wiring.bucket.name,
        user=wiring.user,
        endpoints=wiring.endpoints,
        require_cuda=(not mode.simulated or bool(wiring.here)) and plan.config.gpu != "cpu",
    )


def wire_embedded() -> Wiring:
    """The embedded cloud, whatever the settings say of a project."""
    return Wiring(load_settings().model_copy(update={"project": "", "bucket": ""}))


def new_run_id(now: datetime, gpu: str) -> str:
    return run_id(now, gpu, secrets.token_hex(2))


def fetch_run(bucket: Bucket, run: Run, into: Path) -> Fetched:
    """See `adapters.fetch`; loaded here, as it needs a library for checksums."""
    from orchestrator.adapters.fetch import fetch_run

    return fetch_run(bucket, run, into)


def brought(bucket: Bucket, entry: Entry, path: Path) -> bool:
    """Downloads an object to a file, unless it is there already, byte for byte; whether it did."""
    from orchestrator.adapters.fetch import brought

    return brought(bucket, entry, path)

"""What a user chose, read: the configuration, and what the machine will run for it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.adapters.settings import Settings, load_settings
from orchestrator.core.errors import ConfigError

if TYPE_CHECKING:
    from orchestrator.core.config.model import Config
    from orchestrator.runs.launch import Payload as LaunchPayload
    from orchestrator.runs.planning import LaunchOptions


def utc_now() -> datetime:
    return datetime.now(UTC)


def configs() -> Path:
    """The folder of the configurations, grids and prices that come with the tool."""
    from orchestrator.adapters.payload import bundle_root

    return bundle_root() / "configs"


def configured(options: LaunchOptions, own: Settings | None = None) -> tuple[Config, str]:
    """The configuration that was chosen, with this user's settings, and its name. Raises `ConfigError`."""
    from orchestrator.adapters.workload_files import own_workload
    from orchestrator.runs.planning import load_config

    return load_config(options, configs=configs(), defaults=(own or load_settings()).defaults, workload=own_workload)


def forecast(path: Path) -> Any:
    """The weather in a file, fit for an embedded cloud. Raises `ConfigError`."""
    from orchestrator.core import text, yamltext
    from orchestrator.embedded.weather import parse

    hint = "docs/embedded-cloud.md has examples"
    try:
        with path.open("rb") as file:
            document = yamltext.read(text.text(file))
    except (OSError, ValueError) as exc:
        raise ConfigError(f"cannot read {path}: {text.why(exc)}", hint=hint) from exc
    for line, key, what in document.problems:
        raise ConfigError(f"{path}:{line}: {key + ': ' if key else ''}{what}", hint=hint)
    found = document.data or {"faults": []}
    try:
        parse(found)
        return json.loads(json.dumps(found, default=str))  # a time in YAML is no text
    except (ValueError, TypeError) as exc:
        raise ConfigError(f"{path}: {exc}", hint=hint) from exc


def payload_of(config: Config) -> LaunchPayload:
    """What the machine will run: our own trees, and the files of the user's own workload."""
    from orchestrator.adapters.payload import bundle_root, find_root, pack
    from orchestrator.adapters.workload_files import files_of
    from orchestrator.runs.launch import Payload as LaunchPayload

    root = config.payload.root
    base = bundle_root() if root is None else find_root((Path(root).expanduser().resolve(),))
    packed = pack(base, files_of(config.workload))
    return LaunchPayload(packed.sha256, packed.data, (base / "startup" / "startup.sh").read_text(encoding="utf-8"))

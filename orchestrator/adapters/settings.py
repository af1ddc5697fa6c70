"""Where this user's things are: flags first, then environment, then `settings.yaml` in BENCH_HOME, then defaults."""

from __future__ import annotations

import grp
import json
import os
import pwd
import shlex
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Final

from platformdirs import user_data_path
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from orchestrator.core.config.model import Alerts, Budget
from orchestrator.core.errors import ConfigError
from orchestrator.core.text import os_error_text, read_text

PREFIX: Final = "BENCH_"
PATHS: Final = ("home", "weather")
OTHERS_MAY_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
MEND: Final = "correct the file, or move it away: `bench init` writes a new one"
Cap = Annotated[Decimal, Field(ge=0, allow_inf_nan=False)]
CAPS: Final = ("per_run_usd", "per_day_usd", "per_month_usd", "total_usd")


def default_home() -> Path:
    return user_data_path("spotbench")


def another_home() -> str:
    """The command that chooses a folder that can be written for BENCH_HOME, in this shell."""
    for folder in (Path.home() / ".bench", Path(tempfile.gettempdir()) / f"bench-{os.geteuid()}"):
        with suppress(OSError), tempfile.TemporaryFile(dir=folder if folder.is_dir() else folder.parent):
            return f"export BENCH_HOME={shlex.quote(str(folder))}"
    return "export BENCH_HOME=DIR, a folder that you may write"


def others_may_write(found: os.stat_result) -> bool:
    """Whether another user may write a file: not where it is open to a group of which nobody else is a member."""
    if found.st_mode & stat.S_IWOTH:
        return True
    return bool(found.st_mode & stat.S_IWGRP) and not _is_private(found.st_gid)


def _is_private(group: int) -> bool:
    try:
        who, whose = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    return group == 0 or (who.pw_gid == group and whose.gr_name == who.pw_name and set(whose.gr_mem) <= {who.pw_name})


class Settings(BaseModel):
    """Each setting is also an environment variable: BENCH_HOME, BENCH_PROJECT, BENCH_BUCKET, and so on."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    home: Path = Field(default_factory=default_home)
    """All local state: settings, caches, the embedded cloud."""
    project: str = ""
    """Google Cloud project. Empty: the embedded cloud. Never taken from gcloud's own defaults, so that nothing is
    rented by accident."""
    bucket: str = ""
    weather: Path | None = None
    """Faults for the embedded cloud, as a YAML file."""
    service_account: str = ""
    """What machines run as, where a configuration does not name another."""
    billing_key: str = ""
    """An API key with which `bench prices --refresh` reads the price catalogue, in the place of a login."""
    per_run_usd: Cap | None = None
    per_day_usd: Cap | None = None
    per_month_usd: Cap | None = None
    total_usd: Cap | None = None
    """Caps in dollars, where a configuration of one's own does not set others."""
    alert_command: str | None = None
    alert_webhook: str | None = None
    """Who is told of alerts, by whatever command changes the ledger, where a configuration does not say otherwise."""

    @property
    def defaults(self) -> Mapping[str, str]:
        """Keys of a configuration and their values, as these settings have them."""
        caps = {key: getattr(self, key) for key in CAPS}
        defaults = {f"budget.{key}": str(usd) for key, usd in caps.items() if usd is not None}
        ways = {"alerts.command": self.alert_command, "alerts.webhook": self.alert_webhook}
        defaults |= {key: json.dumps(way) for key, way in ways.items() if way}
        return ({"machine.service_account": self.service_account} if self.service_account else {}) | defaults

    def money(self) -> tuple[Budget, Alerts]:
        """The caps and alert channels of commands that take no configuration. Raises `ConfigError`."""
        caps = {key: usd for key in CAPS if (usd := getattr(self, key)) is not None}
        try:
            return Budget(**caps), Alerts(command=self.alert_command, webhook=self.alert_webhook)
        except ValidationError as exc:
            raise ConfigError(f"bad settings: alert_webhook: {exc.errors()[0]['msg']}") from exc


def load_settings(*, project: str = "", bucket: str = "") -> Settings:
    flags = {key: value for key, value in {"project": project, "bucket": bucket}.items() if value}
    values = {**_from_environment(), **flags}
    try:
        first = Settings.model_validate(values)
        check_home(first.home)
        return Settings.model_validate({**_from_file(first.home / "settings.yaml", first), **values})
    except ValidationError as exc:
        problems = "; ".join(f"BENCH_{str(e['loc'][0]).upper()}: {e['msg']}" for e in exc.errors())
        raise ConfigError(f"bad settings: {problems}") from exc


def check_home(home: Path) -> None:
    """Refuses a BENCH_HOME in which somebody else may have put something: what is there says which commands run, which
    hosts are trusted and what things cost. From one that is ours others lose the right to write. Raises `ConfigError`.
    """
    try:
        target, named = home.stat(), home.lstat()
    except OSError:
        return  # none yet, or one that whoever needs it says more about
    if not {target.st_uid, named.st_uid} <= _trusted():
        raise _not_ours(home, "belongs to another user", "BENCH_HOME=DIR names a folder of your own")
    if target.st_mode & stat.S_IWOTH and (target.st_mode & stat.S_ISVTX or target.st_uid != os.geteuid()):
        raise _not_ours(home, "can be written by everybody", "BENCH_HOME=DIR names a folder of your own")
    if target.st_mode & OTHERS_MAY_WRITE and target.st_uid == os.geteuid():
        with suppress(OSError):
            home.chmod(stat.S_IMODE(target.st_mode) & ~OTHERS_MAY_WRITE)
    try:
        entries = sorted(home.iterdir())
    except OSError:
        return
    for entry in entries:
        with suppress(FileNotFoundError):
            if entry.lstat().st_uid not in _trusted():
                raise _not_ours(entry, "belongs to another user", f"look at it, then delete it or `chown` it: {entry}")


def _trusted() -> set[int]:
    """Whose files are obeyed: one's own, root's, and under `sudo` those of whoever called it."""
    caller = os.environ.get("SUDO_UID", "")
    return {0, os.geteuid(), *([int(caller)] if os.geteuid() == 0 and caller.isdecimal() else [])}


def _not_ours(path: Path, why: str, hint: str) -> ConfigError:
    return ConfigError(f"{path} {why}, so nothing in it is used", hint=hint)


def _from_environment() -> dict[str, str]:
    """The settings that are environment variables; in any case, as shells of some systems have it. A path that is empty
    is none: it would be the folder that one happens to be in."""
    by_variable = {name.lower(): value for name, value in os.environ.items()}
    names = {name: f"{PREFIX}{name}".lower() for name in Settings.model_fields}
    from_variables = {name: by_variable[variable] for name, variable in names.items() if variable in by_variable}
    return {name: value for name, value in from_variables.items() if value or name not in PATHS}


def _from_file(path: Path, environment: Settings) -> dict[str, object]:
    """What the file says, except where the environment says otherwise."""
    try:
        with path.open("rb") as file:
            if others_may_write(os.fstat(file.fileno())):
                raise _not_ours(path, "can be written by other users", f"look at it, then: chmod go-w {path}")
            text = read_text(file)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as exc:
        hint = another_home() if isinstance(exc, NotADirectoryError) else MEND
        raise ConfigError(f"cannot read {path}: {os_error_text(exc)}", hint=hint) from exc
    from orchestrator.core import yamltext

    document = yamltext.read_yaml(text)
    for line, key, what in document.problems:
        raise ConfigError(f"{path}:{line}: {key + ': ' if key else ''}{what}", hint=MEND)
    values = document.data or {}
    known_keys = set(Settings.model_fields) - {"home"}
    if not isinstance(values, dict) or set(values) - known_keys:
        unknown = ", ".join(sorted(map(str, set(values) - known_keys))) if isinstance(values, dict) else "not a mapping"
        raise ConfigError(f"{path}: {unknown}; valid keys are {', '.join(sorted(known_keys))}", hint=MEND)
    return {key: value for key, value in values.items() if key not in environment.model_fields_set}

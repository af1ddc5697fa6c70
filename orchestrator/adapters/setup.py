"""Takes the steps of a set-up: those of the project by REST, the settings and the caps by whoever keeps them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Protocol

from google.auth.credentials import Credentials

from orchestrator.adapters.files import write_atomically
from orchestrator.adapters.google.credentials import credentials_for, prove_identity
from orchestrator.adapters.google.rest import Rest
from orchestrator.adapters.google.storage import GoogleBucket
from orchestrator.core import yamltext
from orchestrator.core.doctor.verdicts import Identity, NetworkRoute
from orchestrator.core.errors import (
    ConfigError,
    CredentialsMissing,
    NotFound,
    PermissionDenied,
    ProviderError,
    Unavailable,
)
from orchestrator.core.names import MachineName, Zone
from orchestrator.core.rest import RestAnswer
from orchestrator.core.setup.calls import survey_project, take_step
from orchestrator.core.setup.plan import SetupRequest, Standing
from orchestrator.core.setup.steps import MakeBucket, ShareCaps, Step, WriteSettings, describe_step
from orchestrator.core.text import os_error_text, read_text
from orchestrator.ports import Bucket, Cloud

# The session through which the checks of the doctor reach a cloud; it is made when the first check needs it.


class CheckingSession:
    """Only looks: it refuses to send a request that changes something."""

    def __init__(
        self,
        credentials: Callable[[], Credentials],
        endpoints: Callable[[], dict[str, str] | None],
        cloud: Callable[[], Cloud],
    ) -> None:
        self._credentials = credentials
        self._endpoints = endpoints
        self._cloud = cloud
        self._rest: Rest | None = None
        self._nobody: Rest | None = None
        self._guard = Lock()

    def route(self) -> NetworkRoute:
        """How requests leave this machine. Raises `LocalError`, and what `endpoints` raises."""
        return self.nobody().session.route()

    def ask_for_machine(self, zone: Zone) -> None:
        """Looks for a machine that never was, through the client that creates machines. Raises what `Cloud` raises."""
        self._cloud().instance(zone, MachineName("bench-doctor"))

    def prove(self) -> Identity:
        """Who is asking, once there is a token for them. Raises `CredentialsMissing` and what `endpoints` raises."""
        self._endpoints()
        return prove_identity(self._credentials())

    def api(self) -> Rest:
        with self._guard:
            if self._rest is None:
                self._rest = Rest(self._credentials(), self._endpoints(), remembers=True)
            return self._rest

    def nobody(self) -> Rest:
        """Without credentials: a refusal is an answer too, and has a date."""
        with self._guard:
            if self._nobody is None:
                self._nobody = Rest(credentials_for("nobody"), self._endpoints())
            return self._nobody

    def close(self) -> None:
        with self._guard:
            for rest in (self._rest, self._nobody):
                if rest is not None:
                    rest.close()


# `settings.yaml` in BENCH_HOME: read as plain text values, and changed key by key, so that comments stay.


def read_settings(path: Path) -> Mapping[str, str]:
    """Every key and its value as text. Raises `ConfigError` for what is no mapping."""
    try:
        with path.open("rb") as file:
            document = yamltext.read_yaml(read_text(file))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as exc:
        raise ConfigError(f"cannot read {path}: {os_error_text(exc)}", hint="correct it, or move it away") from exc
    for line, key, what in document.problems:
        raise ConfigError(f"{path}:{line}: {key + ': ' if key else ''}{what}", hint="correct it, or move it away")
    values = document.data or {}
    if not isinstance(values, dict):
        raise ConfigError(f"{path} has no keys", hint="correct it, or move it away")
    return {str(key): "" if value is None else str(value) for key, value in values.items()}


def change_settings(path: Path, values: Mapping[str, str]) -> None:
    """Sets these keys; the other lines stay as they are. Nobody else can read the file then: an API key or the secret
    address of a webhook may stand in it. Raises `LocalError`."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for key, value in values.items():
        line = f"{key}: {json.dumps(value)}"
        place = next((i for i, text in enumerate(lines) if re.match(rf"{re.escape(key)}\s*:", text)), None)
        if place is None:
            lines.append(line)
        else:
            lines[place] = line
    write_atomically(path, ("\n".join(lines) + "\n").encode(), durable=True, private=True)


class BucketSharing(Protocol):
    """Whoever keeps the caps of a bucket."""

    def there(self, bucket: Bucket) -> Mapping[str, str]: ...

    def share(self, bucket: Bucket, step: ShareCaps) -> None: ...


class Setup:
    """One project's set-up. `rest` must be allowed to change things; `storage` is the base URL of another server."""

    def __init__(
        self,
        rest: Rest,
        credentials: Credentials,
        settings: Path,
        sharing: BucketSharing,
        *,
        storage: str | None = None,
    ) -> None:
        self._rest = rest
        self._sharing = sharing
        self._credentials = credentials
        self._storage = storage
        self.settings = settings

    def survey(self, wanted: SetupRequest) -> Standing:
        """What is there already. Raises `ConfigError` for a settings file that cannot be read."""
        standing = survey_project(self._rest, wanted, read_settings(self.settings))
        if standing.bucket is None or not wanted.budget:
            return standing
        return replace(standing, caps=self._sharing.there(self._objects(wanted.bucket)))

    def take(self, step: Step) -> None:
        """One step. Raises `PermissionDenied`, `CredentialsMissing`, `Unavailable`, `LocalError` and their kin."""
        match step:
            case WriteSettings():
                change_settings(self.settings, dict(step.values))
            case ShareCaps():
                self._sharing.share(self._objects(step.bucket), step)
            case _:
                answer = take_step(self._rest, step)
                if answer.status == 409 and isinstance(step, MakeBucket):
                    # Names of buckets are shared by the whole world; ours may have been made by somebody else just now.
                    raise ProviderError(
                        f"cannot {describe_step(step)}: the name is taken", hint="choose another with --bucket NAME"
                    )
                if not answer.good:
                    raise failure(answer, describe_step(step))

    def _objects(self, name: str) -> GoogleBucket:
        return GoogleBucket(name, endpoint=self._storage, credentials=self._credentials)


def failure(answer: RestAnswer, doing: str) -> ProviderError | NotFound:
    """Our error for an answer that was not good."""
    text = f"cannot {doing}: {answer.message}"
    if answer.status == 0 or answer.status == 429 or answer.status >= 500:
        return Unavailable(text, hint="run the same command again: it does only what is left")
    if answer.status == 401:
        return CredentialsMissing(text, hint="run `gcloud auth application-default login`")
    if answer.api_off:
        hint = "Google refuses a newly enabled API for some minutes: run the same command again after that"
        if answer.consumer:
            hint += f"; it is off in the project {answer.consumer}, to which these credentials are billed"
        return Unavailable(text, hint=hint)
    if answer.status == 403:
        return PermissionDenied(
            text,
            hint="only an owner of the project can do this; `bench init --print gcloud` prints the commands for one",
        )
    if answer.status == 404:
        return NotFound(text, hint="`bench doctor` shows what is missing")
    return ProviderError(text, hint="`bench doctor` shows what is missing")

"""Takes the steps of a set-up: those of the project by REST, the settings and the caps by whoever keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from google.auth.credentials import Credentials

from orchestrator.adapters import settings_file
from orchestrator.adapters.gcs import GoogleBucket
from orchestrator.adapters.rest import Rest
from orchestrator.core.errors import CredentialsMissing, NotFound, PermissionDenied, ProviderError, Unavailable
from orchestrator.core.rest import Answer
from orchestrator.core.setup.calls import survey, take
from orchestrator.core.setup.plan import Standing, Wanted
from orchestrator.core.setup.steps import MakeBucket, ShareCaps, Step, WriteSettings, describe
from orchestrator.ports import Bucket


class Sharing(Protocol):
    """Whoever keeps the caps of a bucket."""

    def there(self, bucket: Bucket) -> Mapping[str, str]: ...

    def share(self, bucket: Bucket, step: ShareCaps) -> None: ...


class Setup:
    """One project's set-up. `rest` must be allowed to change things; `storage` is the base URL of another server."""

    def __init__(
        self, rest: Rest, credentials: Credentials, settings: Path, sharing: Sharing, *, storage: str | None = None
    ) -> None:
        self._rest = rest
        self._sharing = sharing
        self._credentials = credentials
        self._storage = storage
        self.settings = settings

    def survey(self, wanted: Wanted) -> Standing:
        """What is there already. Raises `ConfigError` for a settings file that cannot be read."""
        standing = survey(self._rest, wanted, settings_file.read(self.settings))
        if standing.bucket is None or not wanted.budget:
            return standing
        return replace(standing, caps=self._sharing.there(self._objects(wanted.bucket)))

    def take(self, step: Step) -> None:
        """One step. Raises `PermissionDenied`, `CredentialsMissing`, `Unavailable`, `LocalError` and their kin."""
        match step:
            case WriteSettings():
                settings_file.change(self.settings, dict(step.values))
            case ShareCaps():
                self._sharing.share(self._objects(step.bucket), step)
            case _:
                answer = take(self._rest, step)
                if answer.status == 409 and isinstance(step, MakeBucket):
                    # Names of buckets are shared by the whole world; ours may have been made by somebody else just now.
                    raise ProviderError(
                        f"cannot {describe(step)}: the name is taken", hint="choose another with --bucket NAME"
                    )
                if not answer.good:
                    raise failure(answer, describe(step))

    def _objects(self, name: str) -> GoogleBucket:
        return GoogleBucket(name, endpoint=self._storage, credentials=self._credentials)


def failure(answer: Answer, doing: str) -> ProviderError | NotFound:
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

"""Checks the options of `bench init` before any request: names by Google's rules, amounts as money."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Final

from orchestrator.core.errors import ConfigError
from orchestrator.core.market.catalog import CATALOG
from orchestrator.core.market.pricing import usd
from orchestrator.core.market.skus import regions_near
from orchestrator.core.setup.plan import ACCOUNT_ID, SetupRequest

PROJECT: Final = re.compile(r"(?:[a-z0-9.-]+:)?[a-z](?:[-a-z0-9]{4,28})[a-z0-9]")
BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]")
ACCOUNT: Final = re.compile(r"[a-z][-a-z0-9]{4,28}[a-z0-9]")
MEMBER: Final = re.compile(r"(?:user|group|serviceAccount):[^@\s]+@[^@\s]+\.[^@\s]+")
DEFAULT_LOCATION: Final = "us-central1"
DEFAULT_CAPS: Final[Mapping[str, str]] = {
    "per_run_usd": "1.00",
    "per_day_usd": "5.00",
    "per_month_usd": "20.00",
    "total_usd": "100.00",
}


def parse_setup(
    project: str,
    bucket: str,
    *,
    location: str = DEFAULT_LOCATION,
    account_id: str = ACCOUNT_ID,
    launcher: str = "",
    caps: Mapping[str, str] = DEFAULT_CAPS,
    keeps_names: bool = True,
) -> SetupRequest:
    """The set-up that the options ask for. Raises `ConfigError` that names the flag and what is valid."""
    a_project(project)
    a_bucket(bucket, project)
    if not ACCOUNT.fullmatch(account_id):
        raise ConfigError(
            f"--service-account {account_id}: 6 to 30 lower-case letters, digits and hyphens, without @ and domain",
            hint=f"for example: {ACCOUNT_ID}",
        )
    a_location(location)
    a_launcher(launcher)
    budget = tuple((key, a_cap(key, text)) for key, text in caps.items() if text)
    return SetupRequest(project, bucket, location.lower(), account_id, launcher, budget, keeps_names)


def a_project(text: str) -> str:
    """Returns `text` if it is a valid project id for Google. It raises `ConfigError` if not, as do the functions
    below."""
    if not PROJECT.fullmatch(text):
        raise ConfigError(
            f"--project {text}: a project id has 6 to 30 lower-case letters, digits and hyphens",
            hint="`gcloud projects list` shows the ids of yours",
        )
    return text


def a_bucket(text: str, project: str = "my-project") -> str:
    if not BUCKET.fullmatch(text) or text.startswith("goog") or "google" in text:
        raise ConfigError(
            f"--bucket {text}: a bucket's name has 3 to 63 lower-case letters, digits, dots, hyphens and underscores,"
            " and not the word google",
            hint=f"for example: {project}-bench",
        )
    return text


def a_location(text: str) -> str:
    zones = [zone for gpu in CATALOG for zone in gpu.zones]
    if not regions_near(text, zones):
        raise ConfigError(
            f"--location {text}: no machine of the catalog is in a region of that name",
            hint="us-central1 has most kinds of machines; US, EU and ASIA are possible too",
        )
    return text


def a_launcher(text: str) -> str:
    if text and not MEMBER.fullmatch(text):
        raise ConfigError(
            f"--launcher {text}: expected user:, group: or serviceAccount: and an address",
            hint="for example: user:ada@example.com",
        )
    return text


def a_cap(key: str, text: str) -> Decimal:
    flag = f"--{key.replace('_', '-').removesuffix('-usd')}"
    try:
        amount = usd(text.removeprefix("$"))
    except ValueError as exc:
        raise ConfigError(f"{flag} {text}: {exc}", hint="for example: 5.00") from exc
    if amount < 0:
        raise ConfigError(f"{flag} {text}: a cap cannot be negative", hint="for example: 5.00")
    return amount

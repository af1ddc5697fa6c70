"""Translates an error of Google's into one of bench's, by its status, its reasons and its message, for every client."""

from __future__ import annotations

import re
from typing import Final

from orchestrator.core.errors import (
    BenchError,
    CredentialsMissing,
    LocalError,
    NotFound,
    PermissionDenied,
    ProviderError,
    QuotaExceeded,
    Unavailable,
)

RATE_REASONS: Final = frozenset({"rateLimitExceeded", "userRateLimitExceeded", "RATE_LIMIT_EXCEEDED"})
QUOTA_REASONS: Final = frozenset({"quotaExceeded", "dailyLimitExceeded", "QUOTA_EXCEEDED"})
DISABLED_REASONS: Final = frozenset({"accessNotConfigured", "SERVICE_DISABLED"})
BILLING_REASONS: Final = frozenset({"BILLING_DISABLED", "accountDisabled"})
TRANSIENT_STATUS: Final = frozenset({408, 429, 500, 502, 503, 504})
REMEDY: Final = (
    "run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS to a key file, "
    "or configure no project, to use the embedded cloud; `bench doctor` checks the rest"
)
RETENTION: Final = re.compile("retention policy|object retention|event-based hold|temporary hold", re.IGNORECASE)
RETENTION_REMEDY: Final = (
    "the bucket forbids to replace objects, and a ledger must be replaced: `bench doctor` names the setting and the "
    "command that lifts it"
)
BILLING_PAGE: Final = "https://console.cloud.google.com/billing/linkedaccount"
AGAIN: Final = "run the same command again in a minute; a run that has started continues without this computer"
FULL: Final = (
    "free some space there, or set BENCH_HOME to another folder; a run that has started waits for it, up to its "
    "deadline"
)
_NAME: Final = r"[a-z]+\.[a-zA-Z]+\.[a-zA-Z]+"
_PERMISSION = re.compile(rf"\b({_NAME})\b['\"]? (?:permission|access)|[pP]ermission '({_NAME})' denied")
ACT_AS: Final = "grant roles/iam.serviceAccountUser on the machines' service account to the account in use"
_WORDS: Final = (
    ("has been suspended", "the project is suspended: only Google's support can lift that"),
    ("vpcServiceControls", "VPC Service Controls forbid it: the organisation's administrator can admit this computer"),
    (
        "compute-system.iam.gserviceaccount.com",
        "Google's own service agent of the project lacks this right, not you: grant it to the agent in the message",
    ),
    ("actAs", ACT_AS),
    ("iam.serviceAccountUser", ACT_AS),
)
"""Remedies by what the message says, where the reason is the general one."""


def passes(status: int, reasons: frozenset[str]) -> bool:
    """Whether the same request may succeed if it is sent again."""
    return bool(reasons & RATE_REASONS) if status == 403 else status in TRANSIENT_STATUS


def refusal(doing: str, status: int, words: str, reasons: frozenset[str], *, missing: str = "") -> BenchError:
    """The error that an answer stands for. `doing` completes "cannot …"; `missing` is the hint for a 404."""
    if status == 401:
        return not_accepted(doing, words)
    if status == 403:
        return _forbidden(doing, words, reasons)
    if status == 404:
        return NotFound(f"cannot {doing}: {words}", hint=missing or "check the names in the configuration")
    if passes(status, reasons):
        return lost(doing, words)
    if status == 507:
        return LocalError(f"cannot {doing}: {words}", hint=FULL)
    return ProviderError(f"cannot {doing}: {words}", hint="Google refuses the request itself: check the configuration")


def lost(doing: str, words: str) -> Unavailable:
    return Unavailable(f"cannot {doing}: {words}", hint=AGAIN)


def not_accepted(doing: str, words: str) -> CredentialsMissing:
    return CredentialsMissing(f"cannot {doing}: the credentials were not accepted ({words})", hint=REMEDY)


def no_token(doing: str, words: str) -> Unavailable:
    return Unavailable(f"cannot {doing}: Google's token service does not answer ({words})", hint=AGAIN)


def remedy_for(words: str) -> str:
    """What to do about a refusal with this message; empty where its words are not known."""
    return next((remedy for said, remedy in _WORDS if said in words), "")


def _forbidden(doing: str, words: str, reasons: frozenset[str]) -> BenchError:
    if reasons & RATE_REASONS:
        return Unavailable(f"cannot {doing}: too many requests ({words})", hint=AGAIN)
    if reasons & QUOTA_REASONS:
        return QuotaExceeded(
            f"cannot {doing}: {words}",
            hint="`bench doctor` shows where quota is left; request more at https://console.cloud.google.com/iam-admin/quotas",
        )
    if reasons & DISABLED_REASONS:
        return PermissionDenied(
            f"cannot {doing}: the API is not enabled ({words})",
            hint="`bench doctor --fix` enables what is off (or: `gcloud services enable compute.googleapis.com"
            " storage.googleapis.com`); then wait a minute",
        )
    if reasons & BILLING_REASONS or "billing" in words.lower():
        url = re.search(r"https://console\S+billing\S*", words)
        return PermissionDenied(
            f"cannot {doing}: {words}",
            hint=f"link a billing account that is open to the project: {url[0] if url else BILLING_PAGE}",
        )
    if RETENTION.search(words):
        return ProviderError(f"cannot {doing}: {words}", hint=RETENTION_REMEDY)
    if remedy := remedy_for(words):
        return PermissionDenied(f"cannot {doing}: {words}", hint=remedy)
    needed = _PERMISSION.search(words)
    return PermissionDenied(
        f"cannot {doing}: {words}",
        hint=(
            f"grant `{needed[1] or needed[2]}` to the account in use"
            if needed
            else "`bench docs gce` lists the permissions that are needed"
        )
        + "; `bench doctor` lists all that are missing",
    )

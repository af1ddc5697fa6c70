"""The Cloud Billing Catalog, read whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from google.auth.api_key import Credentials as ApiKey
from google.auth.credentials import Credentials

from orchestrator.adapters.google.rest import Rest
from orchestrator.core.errors import BenchError, CredentialsMissing, PermissionDenied, ProviderError, Unavailable
from orchestrator.core.market.skus import SkuCatalogue, list_skus
from orchestrator.core.rest import RestAnswer

API: Final = "cloudbilling.googleapis.com"
PAGE_TIMEOUT_S: Final = 60.0
"""A page of 5,000 SKUs is some megabytes."""


def key_credentials(key: str) -> Credentials:
    """An API key as credentials: it is sent as a header, so that it stands in no address and in no log."""
    return ApiKey(key)  # type: ignore[no-untyped-call]


def catalogue_for(
    login: Callable[[], Credentials], endpoints: Mapping[str, str] | None, key: str, project: str
) -> tuple[SkuCatalogue, str]:
    """Google's catalogue, or that of the cloud at `endpoints`, and whose it is. `key` is an API key, for Google's only,
    in the place of a login. Raises as `read_catalogue`."""
    if endpoints is not None:
        return read_catalogue(login(), endpoints, project), "the embedded cloud's catalogue, simulated prices"
    return read_catalogue(key_credentials(key) if key else login(), None, project), "Cloud Billing Catalog"


def read_catalogue(credentials: Credentials, endpoints: Mapping[str, str] | None, project: str) -> SkuCatalogue:
    """Every SKU of Compute Engine. Raises `Unavailable`, `PermissionDenied`, `CredentialsMissing`, `ProviderError`."""
    rest_client = Rest(credentials, endpoints, timeout_s=PAGE_TIMEOUT_S)
    try:
        answer = list_skus(rest_client)
    finally:
        rest_client.close()
    if isinstance(answer, RestAnswer):
        raise _failure(answer, project)
    return answer


def _failure(answer: RestAnswer, project: str) -> BenchError:
    text = f"cannot read the price catalogue: {answer.message}"
    if answer.api_off:
        where = answer.consumer or project
        return PermissionDenied(text, hint=f"gcloud services enable {API} --project={where}")
    if answer.status == 401 or (answer.status == 400 and "API key" in answer.message):
        return CredentialsMissing(text, hint="gcloud auth application-default login")
    if answer.status == 403:
        return PermissionDenied(text, hint="gcloud auth application-default login")
    if answer.status in (0, 200, 429) or answer.status >= 500:
        return Unavailable(text, hint="bench prices --refresh")
    return ProviderError(text, hint="bench prices --refresh")

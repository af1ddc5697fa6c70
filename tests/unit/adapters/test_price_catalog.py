"""The price catalogue over HTTP, by the real client: pages, refusals, and no network at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.auth.credentials import AnonymousCredentials

from orchestrator.adapters import price_book
from orchestrator.adapters.google.credentials import Bearer
from orchestrator.adapters.google.rest import SERVICES, endpoints, key_credentials, read_catalogue
from orchestrator.core.errors import (
    BenchError,
    ConfigError,
    CredentialsMissing,
    LocalError,
    PermissionDenied,
    ProviderError,
    Unavailable,
)
from orchestrator.embedded.server import EmbeddedCloud
from tests.support.discovery import Recorder
from tests.support.scripted_server import Answer, Drop, Reply, google_error, in_turn, scripted_server
from tests.support.simulated_timeline import SimulatedTimeline
from tests.unit.core.asked import SHEET

OFF = [{"reason": "SERVICE_DISABLED", "metadata": {"consumer": "projects/somebody-elses"}}]


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCloud]:
    recorder = Recorder()
    with EmbeddedCloud(
        tmp_path_factory.mktemp("prices") / "cloud", timeline=SimulatedTimeline(), observer=recorder
    ) as made:
        yield made
    recorder.assert_all_valid()


def test_every_sku_is_read_page_by_page_as_google_describes_them(cloud: EmbeddedCloud) -> None:
    found = read_catalogue(Bearer(cloud.token), endpoints(cloud.compute_url, cloud.storage_url), cloud.project)
    assert len({sku.number for sku in found.skus}) == len(found.skus) > 200
    assert found.unread == 0
    assert {sku.unit for sku in found.skus} == {"h", "GiBy.h", "GiBy.mo"}


def asked(*answers: Answer, credentials: Any = None) -> Any:
    with scripted_server(in_turn(*answers)) as server:
        nobody = credentials or AnonymousCredentials()  # type: ignore[no-untyped-call]
        try:
            return read_catalogue(nobody, dict.fromkeys(SERVICES, server.url), "my-proj"), server.requests
        except BenchError as exc:
            return exc, server.requests


@pytest.mark.parametrize(
    ("answer", "kind", "said", "hint"),
    [
        (google_error(403, "off", "x", OFF), PermissionDenied, "off", "--project=somebody-elses"),
        (google_error(403, "no", "forbidden"), PermissionDenied, "no", "gcloud auth application-default login"),
        (google_error(401, "who?"), CredentialsMissing, "who?", "gcloud auth"),
        (google_error(400, "API key not valid. Please pass one."), CredentialsMissing, "API key", "gcloud auth"),
        (google_error(400, "bad currency"), ProviderError, "bad currency", "bench prices --refresh"),
        (google_error(503, "later"), Unavailable, "later", "bench prices --refresh"),
        (google_error(429, "slow down"), Unavailable, "slow down", "bench prices --refresh"),
        (Drop(), Unavailable, "does not answer", "bench prices --refresh"),
        (Reply(200, data=b"<html>hello"), Unavailable, "is there a proxy", "bench prices --refresh"),
    ],
)
def test_an_answer_that_is_no_catalogue_is_an_error_of_its_kind(
    answer: Answer, kind: type[BenchError], said: str, hint: str
) -> None:
    error, _ = asked(answer)
    assert type(error) is kind
    assert said in str(error)
    assert hint in error.hint


def test_a_key_is_sent_as_a_header_and_in_no_address() -> None:
    _, requests = asked(Reply(200, {"skus": []}), credentials=key_credentials("a-secret"))
    assert {key.lower(): value for key, value in requests[0].headers.items()}["x-goog-api-key"] == "a-secret"
    assert "a-secret" not in str(requests[0].query)
    assert "Authorization" not in requests[0].headers


def test_a_table_is_kept_and_one_that_is_damaged_is_named(tmp_path: Path) -> None:
    path = tmp_path / "new" / "prices.gce.yaml"
    assert price_book.stored_sheet(path) is None
    price_book.store_sheet(path, SHEET)
    assert price_book.stored_sheet(path) == SHEET
    path.write_text("schema: 9")
    with pytest.raises(ConfigError, match=r"prices\.gce\.yaml"):
        price_book.stored_sheet(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(LocalError) as caught:
        price_book.stored_sheet(path)
    assert caught.value.hint == f"rm {path}"

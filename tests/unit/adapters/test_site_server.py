"""The pages are served to this machine, as they are, and nothing else of it is."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.adapters import site_server
from orchestrator.adapters.site_server import SiteServer
from orchestrator.core.errors import LocalError
from orchestrator.embedded.guard import is_own_connection
from tests.support.memory_bucket import MemoryBucket
from tests.unit.embedded.test_trespass import as_nobody, as_root

PAGE = '<!doctype html><html lang="en"><p>one</p></html>'


@pytest.fixture
def served(tmp_path: Path) -> Iterator[SiteServer]:
    (tmp_path / "site" / "runs").mkdir(parents=True)
    (tmp_path / "site" / "index.html").write_text(PAGE)
    (tmp_path / "site" / "runs" / "a.html").write_text(PAGE)
    (tmp_path / "site" / "notes.txt").write_text("mine")
    (tmp_path / "secret.html").write_text("secret")
    with SiteServer(tmp_path / "site", is_own=is_own_connection) as server:
        yield server


def ask(server: SiteServer, path: str, *, host: str = "", method: str = "GET") -> tuple[int, str, dict[str, str]]:
    own = server.url.removeprefix("http://").rstrip("/")
    connection = http.client.HTTPConnection(own, timeout=600)
    connection.putrequest(method, path, skip_host=True)
    connection.putheader("Host", host or own)
    connection.endheaders()
    answer = connection.getresponse()
    found = answer.status, answer.read().decode(), {name.lower(): value for name, value in answer.getheaders()}
    connection.close()
    return found


def test_pages_are_served_with_a_mark_that_they_are_live(served: SiteServer) -> None:
    for path in ("/", "/index.html", "/runs/a.html"):
        status, text, headers = ask(served, path)
        assert status == 200
        assert '<html lang="en" data-live="' in text
        assert headers["content-type"] == "text/html; charset=utf-8"
        assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "path",
    ["/../secret.html", "/%2e%2e/secret.html", "/..%2fsecret.html", "//secret.html/../../secret.html", "/notes.txt",
     "/runs", "/none.html", "/%00.html", "/-/changes?page=/../secret.html", "/-/changes?page=/none.html", "/-/changes"],
)  # fmt: skip
def test_nothing_but_pages_of_the_folder_is_served(served: SiteServer, path: str) -> None:
    status, text, _ = ask(served, path)
    assert status == 404 or "secret" not in text
    assert "secret" not in text
    assert "mine" not in text


@pytest.mark.parametrize("host", ["evil.example:80", "evil.example", "127.0.0.1.evil.example:1", "[::1]:1"])
def test_a_page_elsewhere_that_names_itself_as_us_may_read_nothing(served: SiteServer, host: str) -> None:
    assert ask(served, "/index.html", host=host)[0] == 421


def test_only_reading_is_understood(served: SiteServer) -> None:
    assert ask(served, "/index.html", method="HEAD")[:2] == (200, "")
    for method in ("POST", "PUT", "DELETE"):
        assert ask(served, "/index.html", method=method)[0] == 501


def test_who_waits_for_a_change_hears_of_it(served: SiteServer, tmp_path: Path) -> None:
    heard: list[str] = []
    waiting = threading.Thread(target=lambda: heard.append(ask(served, "/-/changes?page=/index.html&version=old")[1]))
    waiting.start()
    waiting.join(600)
    assert heard == ["event: changed\ndata: now\n\n"]


def test_a_port_that_is_taken_is_said_so(served: SiteServer, tmp_path: Path) -> None:
    port = int(served.url.rsplit(":", 1)[1].rstrip("/"))
    with pytest.raises(LocalError, match=f"127.0.0.1:{port}"):
        SiteServer(tmp_path, port, is_own=is_own_connection)


def test_publishing_stores_what_is_new_or_other_and_nothing_else(tmp_path: Path) -> None:
    bucket = MemoryBucket()
    (tmp_path / "runs").mkdir()
    (tmp_path / "index.html").write_text(PAGE)
    (tmp_path / "runs" / "a.html").write_text(PAGE)
    paths = ["index.html", "runs/a.html"]
    assert site_server.publish_files(bucket, tmp_path, paths, "site/nightly") == 2
    assert site_server.publish_files(bucket, tmp_path, paths, "site/nightly") == 0
    (tmp_path / "index.html").write_text("other")
    assert site_server.publish_files(bucket, tmp_path, paths, "site/nightly") == 1
    assert [entry.name for entry in bucket.list("")] == ["site/nightly/index.html", "site/nightly/runs/a.html"]


def test_a_connection_of_another_user_is_closed_without_an_answer(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(PAGE)
    seen: list[tuple[tuple[str, int], tuple[str, int]]] = []
    with SiteServer(tmp_path, is_own=lambda peer, here: bool(seen.append((peer, here)))) as server:
        with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
            ask(server, "/index.html")
        assert seen[0][1][1] == int(server.url.rsplit(":", 1)[1].rstrip("/"))


@as_root
def test_a_real_other_user_reads_no_page(served: SiteServer) -> None:
    url = f"{served.url}index.html"
    assert ask(served, "/index.html")[0] == 200
    done = as_nobody([(served.url.removeprefix("http://").rstrip("/"), "GET", "/index.html", None, {})])
    assert done == [(0, done[0][1])], url

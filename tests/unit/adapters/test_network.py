"""Storage, machines and checks see one network: each way to Google works for all three, or fails alike and at once."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from google.oauth2.credentials import Credentials as Login

from orchestrator.adapters.clock import SystemClock
from orchestrator.adapters.google.compute import GoogleCloud
from orchestrator.adapters.google.credentials import Bearer
from orchestrator.adapters.google.market import CallPatience
from orchestrator.adapters.google.network import AUTHORITIES, PIECE_BYTES, Session, send_pieces
from orchestrator.adapters.google.rest import Rest
from orchestrator.adapters.google.storage import GoogleBucket
from orchestrator.adapters.setup import CheckingSession
from orchestrator.core.doctor.project import check_connection
from orchestrator.core.doctor.verdicts import CheckLevel, CheckVerdict, Subject
from orchestrator.core.errors import BenchError, LocalError
from orchestrator.core.market.machines import NOT_SENT, CloudRefusal
from orchestrator.core.names import MachineName, Zone
from orchestrator.core.rest import RestRequest
from orchestrator.runs.doctor import CloudExamination
from tests.support.google_site import GoogleSite, google_site
from tests.support.machine_requests import L4
from tests.support.patience import PATIENCE_S
from tests.support.ports import deaf_port
from tests.support.scripted_server import Reply, scripted_server

PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
CLIENTS = ("storage", "machines", "checks")


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An environment without ways, authorities and certificates."""
    for name in (*PROXIES, *map(str.lower, PROXIES), *AUTHORITIES):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "gcloud"))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[GoogleSite]:
    with google_site(tmp_path) as found:
        yield found


def ask(client: str, credentials: Any, patience_s: float) -> str:
    """What one client says of a question: `ok`, or the error."""
    if client == "storage":
        bucket = GoogleBucket("b", credentials=credentials, patience_s=patience_s)
        try:
            bucket.list("x")
        except BenchError as exc:
            return f"{type(exc).__name__}: {exc} | {exc.hint}"
        finally:
            bucket.close()
        return "ok"
    if client == "machines":
        cloud = GoogleCloud("p", credentials=credentials, patience=CallPatience(pauses_s=(0.1,)))
        try:
            cloud.instance(Zone("us-central1-a"), MachineName("vm"))
        except BenchError as exc:
            return f"{type(exc).__name__}: {exc} | {exc.hint}"
        return "ok"
    rest = Rest(credentials, timeout_s=patience_s)
    answer = rest.ask(RestRequest("iam", "GET", "/v1/roles"))
    rest.close()
    return "ok" if answer.good else answer.trouble


def ask_all(credentials: Any = None, patience_s: float = PATIENCE_S) -> dict[str, str]:
    who = credentials or Bearer("secret")
    with ThreadPoolExecutor(len(CLIENTS)) as pool:
        return dict(zip(CLIENTS, pool.map(lambda client: ask(client, who, patience_s), CLIENTS), strict=True))


ALL_OK = dict.fromkeys(CLIENTS, "ok")
WAYS: dict[str, Callable[[GoogleSite], dict[str, str]]] = {
    "HTTPS_PROXY": lambda site: {"HTTPS_PROXY": f"http://{site.proxy}"},
    "https_proxy": lambda site: {"https_proxy": f"http://{site.proxy}"},
    "no scheme": lambda site: {"HTTPS_PROXY": site.proxy},
    "ALL_PROXY": lambda site: {"ALL_PROXY": f"http://{site.proxy}"},
    "all_proxy": lambda site: {"all_proxy": f"http://{site.proxy}"},
    "TLS to the proxy": lambda site: {"HTTPS_PROXY": f"https://127.0.0.1:{site.tls_proxy_port}"},
    "a password": lambda site: {"HTTPS_PROXY": f"http://ada:p%40ss@{site.proxy}"},
}


@pytest.mark.parametrize("way", WAYS)
def test_each_way_through_a_proxy_works_for_every_client(
    site: GoogleSite, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(site.authority))
    for name, value in WAYS[way](site).items():
        monkeypatch.setenv(name, value)
    assert ask_all() == ALL_OK
    hosts = {tunnel.split()[0] for tunnel in site.tunnels}
    assert hosts == {f"{service}.googleapis.com:443" for service in ("storage", "compute", "iam")}
    assert all(headers["authorization"] == "Bearer secret" for _, headers in site.requests)
    assert ("Basic YWRhOnBAc3M=" in site.tunnels[0]) == (way == "a password")


def test_a_proxy_that_takes_four_seconds_is_waited_for(site: GoogleSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(site.authority))
    monkeypatch.setenv("HTTPS_PROXY", f"http://{site.proxy}")
    site.wait_s = 4.0
    assert ask_all() == ALL_OK
    assert len(site.tunnels) == 3


def hashed_folder(site: GoogleSite) -> str:
    """A folder as OpenSSL reads it: its certificates are named by their subjects."""
    command = ["openssl", "x509", "-subject_hash", "-noout", "-in", str(site.authority)]
    folder = site.authority.parent / "authorities"
    folder.mkdir()
    name = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    (folder / f"{name}.0").write_bytes(site.authority.read_bytes())
    return str(folder)


@pytest.mark.parametrize("variable", [*AUTHORITIES, "REQUESTS_CA_BUNDLE as a folder"])
def test_each_variable_that_names_authorities_works_for_every_client(
    site: GoogleSite, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", f"http://{site.proxy}")
    folder = variable not in AUTHORITIES[:3]
    monkeypatch.setenv(variable.split()[0], hashed_folder(site) if folder else str(site.authority))
    assert ask_all() == ALL_OK


def forbid(site: GoogleSite, status: int) -> dict[str, str]:
    site.status = status
    return {"REQUESTS_CA_BUNDLE": str(site.authority)}


ENDS: dict[str, tuple[Callable[[GoogleSite], dict[str, str]], str, str]] = {
    "an authority that nobody trusts": (lambda site: {}, "certificate is not trusted: self", "REQUESTS_CA_BUNDLE"),
    "a password is wanted": (lambda site: forbid(site, 407), "the proxy refuses: 407", "USER:PASSWORD@"),
    "a SOCKS proxy without what speaks it": (
        lambda site: {"HTTPS_PROXY": f"socks5h://{site.proxy}"},
        "a SOCKS proxy is set: Missing",
        "pip install pysocks",
    ),
    "a proxy's address that is none": (
        lambda site: {"HTTPS_PROXY": "http://:x:y"},
        "a proxy's address cannot be read",
        "correct HTTPS_PROXY",
    ),
    "a host is forbidden": (lambda site: forbid(site, 403), "the proxy refuses: 403", "googleapis.com"),
}


@pytest.mark.parametrize("end", ENDS)
def test_what_is_hopeless_is_told_at_once_by_every_client(
    site: GoogleSite, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    make, words, remedy = ENDS[end]
    monkeypatch.setenv("HTTPS_PROXY", f"http://{site.proxy}")
    for name, value in make(site).items():
        monkeypatch.setenv(name, value)
    answers = ask_all()
    assert all(words in answer for answer in answers.values()), answers
    for client in ("storage", "machines"):
        assert answers[client].startswith("LocalError")
        assert remedy in answers[client].partition(" | ")[2]
    assert site.requests == [], "no token was sent"
    assert len(site.tunnels) <= 4, "nothing is tried again, but one question that changes nothing"


@pytest.mark.parametrize("variable", AUTHORITIES)
def test_a_file_of_authorities_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "/nonexistent/ca.pem")
    monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{deaf_port()}")
    words = f"{variable} is set to /nonexistent/ca.pem, which does not exist"
    answers = ask_all()
    assert answers["checks"] == words
    for client in ("storage", "machines"):
        assert answers[client].startswith(f"LocalError: {words} | unset {variable}")


def test_a_proxy_that_is_down_is_told_as_the_proxy_by_every_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{deaf_port()}")
    for client, answer in ask_all(patience_s=0.5).items():
        service = {"machines": "compute", "checks": "iam"}.get(client, client)
        assert f"the proxy on the way to {service}.googleapis.com does not answer" in answer


class Forgetful(SystemClock):
    """A clock during whose first pause the network's authority is trusted no more."""

    def __init__(self, forget: Callable[[], None]) -> None:
        super().__init__()
        self.forget = forget

    def sleep(self, seconds: float) -> None:
        self.forget()


@pytest.mark.parametrize("arrived", [False, True], ids=["no request left", "one may have arrived"])
def test_only_an_insert_that_certainly_never_left_is_a_refusal(
    site: GoogleSite, monkeypatch: pytest.MonkeyPatch, arrived: bool
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", f"http://{site.proxy}")
    site.answer = {"status": "RUNNING"}  # which names no operation, so that nothing is known of the machine
    if arrived:
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(site.authority))
    clock = Forgetful(lambda: monkeypatch.delenv("REQUESTS_CA_BUNDLE"))
    cloud = GoogleCloud("p", credentials=Bearer("secret"), clock=clock, patience=CallPatience(pauses_s=(0.1,)))
    if arrived:
        with pytest.raises(LocalError, match="certificate is not trusted"):
            cloud.insert(L4)
    else:
        answer = cloud.insert(L4)
        assert isinstance(answer, CloudRefusal)
        assert (answer.code, answer.scope) == (NOT_SENT, "all")
    assert len(site.requests) == arrived


def test_loopback_is_reached_directly_and_netrc_is_not_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{deaf_port()}")
    (tmp_path / ".netrc").write_text("default login ada password secret\n")
    (tmp_path / ".netrc").chmod(0o600)
    with scripted_server(lambda _: Reply(json={})) as server:
        GoogleBucket("b", endpoint=server.url, credentials=Bearer("mine")).list("x")
        headers = {key.lower(): value for key, value in server.requests[0].headers.items()}
        assert headers["authorization"] == "Bearer mine"


def test_a_client_certificate_is_shown_by_every_client(
    site: GoogleSite, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pair = {"cert_path": str(site.authority), "key_path": str(site.key)}
    config = tmp_path / "certificate_config.json"
    config.write_text(json.dumps({"cert_configs": {"workload": pair}}))
    monkeypatch.setenv("GOOGLE_API_USE_CLIENT_CERTIFICATE", "true")
    monkeypatch.setenv("GOOGLE_API_CERTIFICATE_CONFIG", str(config))
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(site.authority))
    monkeypatch.setenv("HTTPS_PROXY", f"http://{site.proxy}")
    assert ask_all() == ALL_OK
    assert {host.partition(".")[2] for host, _ in site.requests} == {"mtls.googleapis.com"}
    assert site.certificates == [True] * 3
    assert "with a client certificate" in check_connection(Session(Bearer("t")).route()).why


def test_another_universe_and_a_quota_project_are_the_same_for_every_client(
    site: GoogleSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(site.authority))
    monkeypatch.setenv("HTTPS_PROXY", f"http://{site.proxy}")
    login: Any = Login("token", quota_project_id="pays", universe_domain="apis-elsewhere.example")  # type: ignore[no-untyped-call]
    assert ask_all(login) == ALL_OK
    assert {host.partition(".")[2] for host, _ in site.requests} == {"apis-elsewhere.example"}
    assert {headers["x-goog-user-project"] for _, headers in site.requests} == {"pays"}
    assert all("gzip" in headers["user-agent"] for _, headers in site.requests), "Google compresses for this agent"


def test_a_large_body_leaves_in_pieces_so_that_its_limit_is_one_for_silence(
    site: GoogleSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = bytes(range(256)) * 12_000
    assert b"".join(send_pieces(data)) == data
    assert max(map(len, send_pieces(data))) == PIECE_BYTES
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(site.authority))
    monkeypatch.setenv("HTTPS_PROXY", f"http://{site.proxy}")
    bucket = GoogleBucket("b", credentials=Bearer("secret"), patience_s=PATIENCE_S)
    assert bucket.create("x", data)
    bucket.close()
    assert data in site.bodies[0]
    assert "transfer-encoding" not in site.requests[0][1]


def test_the_doctors_line_names_the_way(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert check_connection(Session(Bearer("t")).route()).why == (
        "directly; certificate authorities: the list of certifi"
    )
    (tmp_path / "ca.pem").touch()
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    monkeypatch.setenv("ALL_PROXY", "http://ada:secret@127.0.0.1:3128")
    said = check_connection(Session(Bearer("t")).route()).why
    assert "through the proxy http://127.0.0.1:3128" in said
    assert f"SSL_CERT_FILE ({tmp_path / 'ca.pem'})" in said
    assert "secret" not in said
    monkeypatch.setenv("NO_PROXY", ".googleapis.com")
    assert Session(Bearer("t")).route().proxy == ""
    monkeypatch.setenv("SSL_CERT_FILE", "/nonexistent")
    with pytest.raises(LocalError):
        Session(Bearer("t")).route()


def test_the_doctor_asks_through_the_client_that_launches(site: GoogleSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", f"http://{site.proxy}")
    key = Bearer("secret")

    def look() -> CheckVerdict:
        session = CheckingSession(lambda: key, lambda: None, lambda: GoogleCloud("p", credentials=key))
        return CloudExamination(session, lambda: Subject("p", "b")).ask_for_machine()

    refused = look()
    assert refused.level is CheckLevel.FAIL
    assert "REQUESTS_CA_BUNDLE" in refused.remedy
    monkeypatch.setenv("SSL_CERT_FILE", str(site.authority))
    site.answer = {"name": "bench-doctor", "zone": "zones/us-central1-a"}
    assert look().level is CheckLevel.OK
    assert site.tunnels[-1] == "compute.googleapis.com:443"

"""The transport below the bucket, the listing of machines and the checks: what it keeps, renews, unpacks and refuses."""

from __future__ import annotations

import gzip
import select
import socket
import ssl
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from threading import Event, Thread

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from orchestrator.adapters import web_routes
from orchestrator.adapters.web import Nobody, NoResponse, NotSigned, Token, Web
from tests.support.patience import await_truth
from tests.support.scripted_server import Reply, google_error, in_turn, scripted_server


@pytest.fixture(autouse=True)
def fresh_routes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test has ways and certificates of its own."""
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY", *web_routes.BUNDLES):
        monkeypatch.delenv(name, raising=False)
    yield
    web_routes.route_to.cache_clear()
    web_routes._context.cache_clear()


@contextmanager
def listening(*answers: bytes, context: ssl.SSLContext | None = None) -> Iterator[tuple[int, list[bytes]]]:
    """A server that reads one request from each connection, says the next of `answers`, and ends it without a word."""
    heard: list[bytes] = []
    door = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        for answer in answers:
            try:
                found, _ = door.accept()
                with context.wrap_socket(found, server_side=True) if context else found as connection:
                    heard.append(connection.recv(65536))
                    connection.sendall(answer)
            except OSError:
                continue

    thread = Thread(target=serve)
    thread.start()
    try:
        yield door.getsockname()[1], heard
    finally:
        while thread.is_alive():  # whoever was not asked still waits to be
            with socket.socket() as knock:
                knock.settimeout(1)
                if knock.connect_ex(door.getsockname()):
                    break
            thread.join(0.1)
        thread.join()
        door.close()


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


def test_requests_one_after_the_other_take_one_connection() -> None:
    peers: set[str] = set()

    with scripted_server(lambda request: peers.add(request.headers["Host"]) or Reply(json={})) as server:
        web = Web(Nobody())
        for _ in range(5):
            assert web.ask("GET", server.url + "/x").status == 200
        assert sum(len(kept) for kept in web._idle.values()) == 1
        web.close()
        assert web.calls == len(server.requests) == 5


def test_a_connection_that_the_server_has_ended_is_not_asked_again() -> None:
    with listening(OK, OK) as (port, heard):
        web = Web(Nobody())
        assert web.ask("GET", f"http://127.0.0.1:{port}/x").status == 200
        ((kept,),) = web._idle.values()
        await_truth(lambda: select.select([kept.sock], [], [], 0)[0], "the end of the connection")
        assert web.ask("GET", f"http://127.0.0.1:{port}/x").status == 200
        web.close()
    assert len(heard) == 2


def test_an_answer_compressed_for_the_way_is_unpacked_and_one_stored_so_is_not() -> None:
    packed = gzip.compress(b'{"a": 1}')
    way = Reply(data=packed, headers={"Content-Encoding": "gzip"})
    stored = Reply(data=packed, headers={"Content-Encoding": "gzip", "X-Goog-Stored-Content-Encoding": "gzip"})
    with scripted_server(in_turn(way, stored)) as server:
        web = Web(Nobody())
        assert web.ask("GET", server.url).document == {"a": 1}
        assert web.ask("GET", server.url).data == packed
        web.close()
        assert "gzip" in server.requests[0].headers["User-Agent"], "Google asks for it there as well"


def test_a_compressed_answer_that_is_cut_short_is_lost() -> None:
    cut = Reply(data=gzip.compress(bytes(1000))[:-9], headers={"Content-Encoding": "gzip"})
    with scripted_server(in_turn(cut)) as server, pytest.raises(NoResponse, match="incomplete or damaged"):
        Web(Nobody()).ask("GET", server.url)


@contextmanager
def dripping(first: bytes, each: bytes) -> Iterator[int]:
    """A server that says `first` to a request, and then `each` every 20 ms for as long as it is listened to."""
    over = Event()
    door = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = door.accept()
        with connection, suppress(OSError):
            connection.recv(65536)
            connection.sendall(first)
            while not over.wait(0.02):
                connection.sendall(each)

    thread = Thread(target=serve)
    thread.start()
    try:
        yield door.getsockname()[1]
    finally:
        over.set()
        thread.join()
        door.close()


@pytest.mark.parametrize(
    ("first", "each"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", b"x"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
        (b"HTTP/1.1 200 OK\r\n", b"X-More: 1\r\n"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    ],
    ids=["a body", "chunks", "headers", "100 Continue"],
)
def test_an_answer_that_never_ends_is_lost_although_it_is_never_silent(first: bytes, each: bytes) -> None:
    with dripping(first, each) as port, pytest.raises(NoResponse, match="does not come to an end"):
        Web(Nobody(), grace_s=0.2).ask("GET", f"http://127.0.0.1:{port}/x")


def test_an_answer_that_unpacks_to_more_than_there_is_room_for_is_lost() -> None:
    bomb = Reply(data=gzip.compress(bytes(10_000_000)), headers={"Content-Encoding": "gzip"})
    with scripted_server(in_turn(bomb)) as server:
        tracemalloc.start()
        with pytest.raises(NoResponse, match="more than 100000 bytes"):
            Web(Nobody()).ask("GET", server.url, largest=100_000)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert most < 3_000_000


@pytest.mark.parametrize(
    ("first", "each"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", bytes(300_000)),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\n", bytes(300_000)),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"493E0\r\n" + bytes(300_000) + b"\r\n"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n", bytes(300_000)),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFF\r\n", bytes(300_000)),
    ],
    ids=["no length", "a long one", "chunks", "a chunk of -1", "a long chunk"],
)
def test_an_answer_of_more_bytes_than_there_is_room_for_is_lost(first: bytes, each: bytes) -> None:
    with dripping(first, each) as port, pytest.raises(NoResponse, match="more than 1000000 bytes"):
        Web(Nobody()).ask("GET", f"http://127.0.0.1:{port}/x", largest=1_000_000)


def test_an_answer_shorter_than_it_says_is_lost() -> None:
    with listening(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello") as (port, _), pytest.raises(NoResponse):
        Web(Nobody()).ask("GET", f"http://127.0.0.1:{port}/x")


def test_an_answer_with_a_chunk_of_less_than_nothing_is_lost() -> None:
    odd = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nhello"
    with listening(odd) as (port, _), pytest.raises(NoResponse):
        Web(Nobody()).ask("GET", f"http://127.0.0.1:{port}/x")


def test_an_answer_that_goes_on_arriving_may_take_longer_than_a_short_one() -> None:
    with dripping(b"HTTP/1.1 200 OK\r\nContent-Length: 1200000\r\n\r\n", bytes(20_000)) as port:
        assert len(Web(Nobody(), grace_s=1).ask("GET", f"http://127.0.0.1:{port}/x").data) == 1_200_000


class Renewing:
    """Has another token after each refusal."""

    billed_to = ""

    def __init__(self) -> None:
        self.tokens = 1

    def sign(self, method: str, url: str, headers: dict[str, str]) -> None:
        headers["Authorization"] = f"Bearer {self.tokens}"

    def renew(self) -> bool:
        self.tokens += 1
        return True


def test_a_token_that_is_refused_is_renewed_once() -> None:
    with scripted_server(in_turn(google_error(401, "expired"), Reply(json={}))) as server:
        assert Web(Renewing()).ask("GET", server.url).status == 200
        assert [one.headers["Authorization"] for one in server.requests] == ["Bearer 1", "Bearer 2"]
    with scripted_server(in_turn(google_error(401, "expired"))) as server:
        assert Web(Renewing()).ask("GET", server.url).status == 401
        assert len(server.requests) == 2


def test_a_fixed_token_that_is_refused_says_why_and_nobodys_refusal_is_an_answer() -> None:
    with scripted_server(in_turn(google_error(401, "no"))) as server:
        with pytest.raises(NotSigned, match="it was restarted"):
            Web(Token("t")).ask("GET", server.url)
        assert Web(Nobody()).ask("GET", server.url).status == 401
        assert "Authorization" not in server.requests[1].headers


def test_a_query_may_repeat_a_key_and_a_piecewise_body_is_sent_whole() -> None:
    with scripted_server(lambda request: Reply(data=request.body)) as server:
        reply = Web(Nobody()).ask(
            "POST", server.url, {"k": ["1", "2 3"]}, body=lambda: iter([b"ab", b"c"]), headers={"Content-Length": "3"}
        )
        assert reply.data == b"abc"
        assert "Transfer-Encoding" not in server.requests[0].headers


def test_a_proxy_is_asked_for_a_tunnel_with_its_own_password(monkeypatch: pytest.MonkeyPatch) -> None:
    with listening(b"HTTP/1.1 407 no\r\nContent-Length: 0\r\n\r\n") as (port, heard):
        monkeypatch.setenv("https_proxy", f"http://ada:p%40ss@127.0.0.1:{port}")
        with pytest.raises(NoResponse, match="407"):
            Web(Token("secret")).ask("GET", "https://storage.example/x")
    assert heard[0].startswith(b"CONNECT storage.example:443 ")
    assert b"Basic YWRhOnBAc3M=" in heard[0]
    assert b"secret" not in heard[0], "the token is for the server, not for the proxy"


def test_a_request_without_encryption_is_handed_to_the_proxy_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    with listening(OK) as (port, heard):
        monkeypatch.setenv("http_proxy", f"http://ada:p%40ss@127.0.0.1:{port}")
        web = Web(Nobody())
        assert web.ask("GET", "http://metadata.example/x", {"a": 1}).status == 200
        web.close()
    assert heard[0].startswith(b"GET http://metadata.example:80/x?a=1 HTTP/1.1")
    assert b"Basic YWRhOnBAc3M=" in heard[0]


def test_loopback_and_what_no_proxy_names_are_reached_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "near.example")
    assert web_routes.route_to("https", "127.0.0.1", 443).proxy == ""
    assert web_routes.route_to("https", "near.example", None).proxy == ""
    assert web_routes.route_to("https", "far.example", None).proxy == "http://127.0.0.1:9"


def own_certificate(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """A certificate for 127.0.0.1 that nobody has signed but itself, and a server's context that shows it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "here")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(1).not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    public, private = folder / "own.pem", folder / "key.pem"
    public.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8
    private.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(public, private)
    return public, context


def test_a_server_that_nobody_vouches_for_is_sent_nothing(tmp_path: Path) -> None:
    _, context = own_certificate(tmp_path)
    with listening(OK, context=context) as (port, heard), pytest.raises(NoResponse, match="certificate"):
        Web(Token("secret")).ask("GET", f"https://127.0.0.1:{port}/x")
    assert heard == []


def test_certificates_of_ones_own_are_named_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    public, context = own_certificate(tmp_path)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(public))
    with listening(OK, context=context) as (port, heard):
        web = Web(Token("secret"))
        assert web.ask("GET", f"https://127.0.0.1:{port}/x").status == 200
        web.close()
    assert b"Authorization: Bearer secret" in heard[0]

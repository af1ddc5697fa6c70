"""Google on loopback, as a client behind a proxy sees it: TLS under Google's names, signed by an authority of our own,
and a proxy that leads there. Nothing is resolved: the proxy is told the name."""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from threading import Thread
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

SERVICES = ("storage", "compute", "iam", "oauth2")
DOMAINS = ("googleapis.com", "mtls.googleapis.com", "apis-elsewhere.example")


@dataclass
class GoogleSite:
    """`answer` is given to every request. `status` and `wait_s` are the proxy's own answer to CONNECT, and how long it
    takes."""

    authority: Path
    key: Path
    proxy_port: int = 0
    tls_proxy_port: int = 0
    status: int = 200
    wait_s: float = 0.0
    answer: Any = field(default_factory=lambda: {"name": "vm", "generation": "7", "zone": "zones/us-central1-a"})
    tunnels: list[str] = field(default_factory=list)
    """`HOST AUTHORIZATION` of each CONNECT."""
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    certificates: list[bool] = field(default_factory=list)

    @property
    def proxy(self) -> str:
        return f"127.0.0.1:{self.proxy_port}"


def write_authority(folder: Path) -> tuple[Path, Path]:
    """A certificate for Google's names and loopback, signed by itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "an authority of our own")])
    now = datetime.now(UTC)
    names = [x509.DNSName(f"{service}.{domain}") for service in SERVICES for domain in DOMAINS]
    certificate = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(1).not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1")), *names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    public, private = folder / "own.pem", folder / "key.pem"
    public.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8
    private.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    return public, private


@contextmanager
def google_site(folder: Path) -> Iterator[GoogleSite]:
    site = GoogleSite(*write_authority(folder))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(site.authority, site.key)
    shown = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    shown.load_cert_chain(site.authority, site.key)
    shown.verify_mode = ssl.CERT_OPTIONAL
    shown.load_verify_locations(site.authority)

    class Google(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

        def _serve(self) -> None:
            site.bodies.append(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
            site.requests.append((self.headers["Host"], {key.lower(): text for key, text in self.headers.items()}))
            site.certificates.append(bool(self.connection.getpeercert()))  # type: ignore[attr-defined]
            data = json.dumps(site.answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = _serve  # noqa: N815

    class Proxy(StreamRequestHandler):
        disable_nagle_algorithm = True

        def handle(self) -> None:
            head = b""
            while b"\r\n\r\n" not in head:
                if not (piece := self.request.recv(4096)):
                    return
                head += piece
            lines = head.decode().split("\r\n")
            login = next((line.partition(": ")[2] for line in lines if line.lower().startswith("proxy-auth")), "")
            site.tunnels.append(f"{lines[0].split()[1]} {login}".strip())
            time.sleep(site.wait_s)
            if site.status != 200:
                self.request.sendall(f"HTTP/1.1 {site.status} no\r\nContent-Length: 0\r\n\r\n".encode())
                return
            self.request.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            with socket.create_connection(("127.0.0.1", google_port)) as there:
                back = Thread(target=pump, args=(there, self.request), daemon=True)
                back.start()
                pump(self.request, there)
                back.join()

    with ExitStack() as servers:
        google_port = servers.enter_context(serving(ThreadingHTTPServer, Google, shown))
        site.proxy_port = servers.enter_context(serving(ThreadingTCPServer, Proxy, None))
        site.tls_proxy_port = servers.enter_context(serving(ThreadingTCPServer, Proxy, context))
        yield site


def pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while piece := source.recv(16384):
            target.sendall(piece)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)


@contextmanager
def serving(kind: Any, handler: Any, context: ssl.SSLContext | None) -> Iterator[int]:
    """The port of a server, each of whose connections speaks TLS by `context`."""

    class Server(kind):  # type: ignore[misc]
        daemon_threads = True
        allow_reuse_address = True

        def finish_request(self, request: Any, client_address: Any) -> None:
            with suppress(OSError):  # a client that does not trust us ends the handshake
                wrapped = context.wrap_socket(request, server_side=True) if context else request
                super().finish_request(wrapped, client_address)

        def handle_error(self, request: Any, client_address: Any) -> None:
            pass

    server = Server(("127.0.0.1", 0), handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

"""A real sshd on loopback, an ordinary process with keys of its own, and a wire to it that can be cut."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.patience import PATIENCE_S
from tests.support.ports import own_port

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def make_key(path: Path) -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    return path


@dataclass
class Sshd:
    """A server. `home` is the home folder that whoever logs in finds; `user_key` is the key that opens."""

    folder: Path
    port: int
    home: Path
    user_key: Path
    host_key: Path
    process: subprocess.Popen[bytes]

    @property
    def cache(self) -> Path:
        return self.home / ".cache" / "spotbench"

    def known_line(self, port: int | None = None) -> str:
        """The line of known_hosts that is true of this server."""
        kind, key = self.host_key.with_suffix(".pub").read_text().split()[:2]
        return f"[127.0.0.1]:{port or self.port} {kind} {key}\n"

    def log(self) -> str:
        return (self.folder / "sshd.log").read_text(errors="replace")


@contextmanager
def sshd(
    folder: Path,
    *,
    environment: dict[str, str] | None = None,
    lines: tuple[str, ...] = (),
    limits: tuple[str, ...] = (),
) -> Iterator[Sshd]:
    """A server until the end of the block, with nothing of it left then. `limits` go to prlimit(1)."""
    assert SSHD is not None, "the fixture skips where there is no sshd"
    folder.mkdir(parents=True)
    folder.chmod(0o700)
    home = folder / "home"
    home.mkdir()
    host_key, user_key = make_key(folder / "host_ed25519"), make_key(folder / "user_ed25519")
    authorized = folder / "authorized_keys"
    authorized.write_text(user_key.with_suffix(".pub").read_text())
    port = own_port()
    values = {"HOME": str(home), **(environment or {})}
    config = folder / "sshd_config"
    config.write_text(
        "\n".join(
            (
                f"Port {port}",
                "ListenAddress 127.0.0.1",
                f"HostKey {host_key}",
                f"AuthorizedKeysFile {authorized}",
                f"PidFile {folder / 'sshd.pid'}",
                "StrictModes no",
                "UsePAM no",
                "PasswordAuthentication no",
                "KbdInteractiveAuthentication no",
                "PermitRootLogin yes",
                "MaxStartups 100",
                "Subsystem sftp internal-sftp",
                "SetEnv " + " ".join(f'"{name}={value}"' for name, value in values.items()),
                *lines,
            )
        )
        + "\n"
    )
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # where a server that runs as root keeps its unprivileged half
    command = [SSHD, "-D", "-f", str(config), "-E", str(folder / "sshd.log")]
    # A test run that is itself killed takes its server along.
    prefix = ["setpriv", "--pdeathsig", "TERM", *(["prlimit", *limits] if limits else [])]
    process = subprocess.Popen([*prefix, *command], start_new_session=True, stdin=subprocess.DEVNULL)
    server = Sshd(folder, port, home, user_key, host_key, process)
    try:
        await_port(port, process)
        yield server
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=PATIENCE_S)


def await_port(port: int, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + PATIENCE_S
    while True:
        assert process.poll() is None, "sshd did not start"
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            assert time.monotonic() < until, "sshd does not listen"
            time.sleep(0.02)


@dataclass
class Wire:
    """A TCP proxy to a port. `cut` resets what goes through it, and for `down_s` nothing new gets through; `cut_when`
    does so at a moment that cannot be missed: no answer that comes after it gets through before."""

    to: int
    port: int = 0
    cuts: int = 0
    """How often something that was going through was cut."""
    down_until: float = 0.0
    pairs: list[tuple[socket.socket, socket.socket]] = field(default_factory=list)
    """Both ends of what goes through."""
    wish: Callable[[], bool] | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    listener: socket.socket = field(init=False)

    def __enter__(self) -> Wire:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self.listener.getsockname()[1])
        threading.Thread(target=self.serve, name="wire", daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.wish = None
        self.listener.close()
        self.cut(0)

    def cut_when(self, condition: Callable[[], bool], down_s: float) -> threading.Event:
        """Cuts once, as soon as the condition is true and something goes through. The event is set then."""
        done = threading.Event()

        def is_cut() -> bool:
            if condition():
                with self.lock:
                    if self.wish is is_cut and self.pairs:
                        self.cut_now(down_s)
                        done.set()
            return done.is_set()

        def look() -> None:
            while self.wish is is_cut and not is_cut():
                time.sleep(0.001)

        self.wish = is_cut
        threading.Thread(target=look, name="wire", daemon=True).start()
        return done

    def cut(self, down_s: float = 0.5) -> None:
        with self.lock:
            self.cut_now(down_s)

    def cut_now(self, down_s: float) -> None:
        self.cuts += bool(self.pairs)
        self.down_until = time.monotonic() + down_s
        for end in (end for pair in self.pairs for end in pair):
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self.pairs, self.wish = [], None

    def serve(self) -> None:
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            if time.monotonic() < self.down_until:
                near.close()
                continue
            try:
                far = socket.create_connection(("127.0.0.1", self.to), timeout=600)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            near.settimeout(None)
            pair = (near, far)
            with self.lock:
                self.pairs.append(pair)
            for source, sink in (pair, pair[::-1]):
                threading.Thread(target=self.carry, args=(pair, source, sink), daemon=True).start()

    def carry(self, pair: tuple[socket.socket, socket.socket], source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if source is pair[1] and (wish := self.wish) is not None and wish():
                    return
                sink.sendall(data)
        for end in pair:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        with self.lock:
            if pair in self.pairs:
                self.pairs.remove(pair)
                return
        for end in pair:  # the other way has ended too
            end.close()

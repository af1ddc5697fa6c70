"""A host for tests: a real sshd, a home of its own with a python that has something called torch, and a client's home."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.integration.cli.conftest import Bench, bench, cloud  # noqa: F401
from tests.support import bare_python
from tests.support.paced import paced_payload, stand_ins
from tests.support.sshd import SSHD, Sshd, Wire, sshd


@pytest.fixture(autouse=True, scope="session")
def _needs_sshd() -> None:
    if SSHD is None:
        if os.environ.get("CI"):
            pytest.fail("CI has no sshd: .ci/run installs openssh-server")
        pytest.skip("there is no sshd here: apt-get install openssh-server", allow_module_level=False)


@dataclass
class Client:
    """The home of whoever launches: an ssh configuration with the alias `box`, and known_hosts."""

    home: Path

    @property
    def known_hosts(self) -> Path:
        return self.home / ".ssh" / "known_hosts"

    def knows(self, *lines: str) -> None:
        self.known_hosts.write_text("".join(lines))

    def configure(self, *blocks: str) -> None:
        (self.home / ".ssh" / "config").write_text("\n".join(blocks) + "\n")

    def reaches(self, server: Sshd, port: int | None = None, name: str = "box", more: str = "") -> None:
        """Gives `server` the alias `name`, and knows its key."""
        text = (
            f"Host {name}\n  HostName 127.0.0.1\n  Port {port or server.port}\n  IdentityFile {server.user_key}\n{more}"
        )
        self.configure(text)
        self.knows(server.known_line(port))


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Client:
    home = tmp_path / "client"
    (home / ".ssh").mkdir(parents=True, mode=0o700)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    return Client(home)


def with_stand_ins(home: Path) -> None:
    """Something called torch among what the host's user has installed for themselves: found where pip would put it."""
    stand_ins(home / ".local" / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages")


def base_python(folder: Path) -> str:
    """A PATH on which `python3` is an interpreter without packages."""
    folder.mkdir(parents=True)
    (folder / "python3").symlink_to(bare_python.program())
    return f"{folder}:/usr/local/bin:/usr/bin:/bin"


Start = Callable[..., AbstractContextManager[Sshd]]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Starts a server in a folder of its own."""
    return partial(sshd, tmp_path / "server")


@pytest.fixture
def host(tmp_path: Path, client: Client) -> Iterator[Sshd]:
    """A host that the client reaches as `box`, where runs are quick."""
    path = base_python(tmp_path / "python")
    with sshd(tmp_path / "server", environment={"PATH": path}) as server:
        with_stand_ins(server.home)
        client.reaches(server)
        yield server


@pytest.fixture
def wire(host: Sshd, client: Client) -> Iterator[Wire]:
    """The host, reached by way of a wire that can be cut."""
    with Wire(host.port) as made:
        client.reaches(host, made.port)
        yield made


@pytest.fixture
def paced(tmp_path: Path) -> tuple[str, ...]:
    """What makes a launch quick: a payload with the paced harness, and two cases."""
    return (
        "--set", f"payload.root={paced_payload(tmp_path / 'paced')}",
        "--set", "measure.grid={shapes: [{batch: 1, heads: 2, seq: 16, head_dim: 64}, {batch: 1, heads: 2, seq: 47, head_dim: 64}], dtypes: [float32]}",
        "--set", "measure.repeats=20",
        "--set", "environment.min_free_gb=0",
    )  # fmt: skip


CASES = ("b1-h2-kv2-q16-k16-d64-full-float32", "b1-h2-kv2-q47-k47-d64-full-float32")

"""Translates what SSH libraries raise into errors that say what happened, to which machine, and what to do next."""

from __future__ import annotations

import socket
from typing import Final

from fabric import Connection
from paramiko import (
    AuthenticationException,
    BadHostKeyException,
    ChannelException,
    PasswordRequiredException,
    ProxyCommandFailure,
    SSHException,
)
from paramiko.ssh_exception import NoValidConnectionsError

from orchestrator.adapters.ssh_keys import HostKeyUnknown, kind_of, known_hosts_files, sha256_of
from orchestrator.core.errors import BenchError, HostKeyRefused, PermissionDenied, Unavailable
from orchestrator.core.hosts import Target

LOST: Final = (SSHException, EOFError, ConnectionError, TimeoutError, socket.timeout)
"""What a connection that is cut looks like, from whichever call notices."""

NO_KEYS: Final = "No authentication methods"
"""How paramiko says that there was nothing to try."""


def lost(target: Target, when: str, exc: BaseException | None) -> Unavailable:
    why = f" ({_said(exc)})" if exc is not None else ""
    return Unavailable(
        f"the connection to {target} was lost {when}{why}",
        hint="a run there continues; `bench status` copies what it stored to the bucket",
    )


def not_let_in(target: Target, connection: Connection, exc: Exception) -> BenchError:
    """Why a connection could not be made."""
    where = f"{connection.host} port {connection.port}"
    if isinstance(exc, HostKeyUnknown):
        return unknown_key(target, connection, exc)
    if isinstance(exc, BadHostKeyException):
        return changed_key(target, connection, exc)
    if isinstance(exc, PasswordRequiredException):
        return PermissionDenied(
            f"a key for {target} is protected by a passphrase", hint="`ssh-add` adds it to your SSH agent"
        )
    if isinstance(exc, AuthenticationException) or (isinstance(exc, SSHException) and NO_KEYS in str(exc)):
        return PermissionDenied(
            f"{target} refuses the login of {connection.user} with any key here: {_said(exc)}",
            hint=f"`ssh-copy-id {target.ssh}` adds your key there; `ssh -v {target.ssh} true` shows what was tried",
        )
    if isinstance(exc, socket.gaierror):
        return Unavailable(
            f"{target} cannot be found: {'it' if connection.host == str(target) else connection.host} has no address",
            hint="check the name, or give it a Host entry with a HostName in ~/.ssh/config",
        )
    if isinstance(exc, NoValidConnectionsError | ConnectionRefusedError):
        return Unavailable(
            f"{target} does not answer: nothing listens at {where}",
            hint="check that it is switched on and runs sshd; --host user@box:port names another port",
        )
    if isinstance(exc, ChannelException | ProxyCommandFailure):
        return Unavailable(
            f"{target} cannot be reached through its jump host: {_said(exc)}",
            hint=f"`ssh -v {target.ssh} true` shows what fails",
        )
    if isinstance(exc, OSError | EOFError | SSHException):
        return Unavailable(
            f"{target} cannot be reached at {where}: {_said(exc)}", hint=f"`ssh -v {target.ssh} true` shows what fails"
        )
    if isinstance(exc, ValueError | KeyError):
        return PermissionDenied(
            f"no connection to {target} can be made: {_said(exc)}", hint=f"`ssh -G {target.ssh}` shows its settings"
        )
    raise exc


def unknown_key(target: Target, connection: Connection, exc: HostKeyUnknown) -> HostKeyRefused:
    host, port = _place(exc.name)
    file = known_hosts_files(connection)[0]
    add = f"ssh-keyscan -p {port} -t {kind_of(exc.key)} {host} >> {file}"
    if connection.gateway:
        add = f"ssh -o StrictHostKeyChecking=ask {target.ssh} true"
    return HostKeyRefused(
        f"the key of {target} is unknown: no known_hosts file has one for {exc.name}. It shows {sha256_of(exc.key)}",
        hint=f"on that machine, `ssh-keygen -lf /etc/ssh/ssh_host_{kind_of(exc.key)}_key.pub` must print the same "
        f"fingerprint; then add it with: {add}",
    )


def changed_key(target: Target, connection: Connection, exc: BadHostKeyException) -> HostKeyRefused:
    file, name = known_hosts_files(connection)[0], _shown_by(connection, exc.hostname)
    return HostKeyRefused(
        f"{target} shows another key than the one in known_hosts: expected {sha256_of(exc.expected_key)}, "
        f"got {sha256_of(exc.key)}. Somebody may be intercepting the connection",
        hint=f"ask its owner whether it was reinstalled; only if it was: ssh-keygen -f {file} -R '{name}'",
    )


def _shown_by(connection: Connection, host: str) -> str:
    """How known_hosts calls the hop that showed a key."""
    hop: Connection | str | None = connection
    while isinstance(hop, Connection):
        if hop.host == host and int(hop.port) != 22:
            return f"[{host}]:{hop.port}"
        hop = hop.gateway
    return host


def _place(name: str) -> tuple[str, str]:
    """Host and port of a known_hosts name: `box`, `[box]:2222`."""
    host, _, port = name.removeprefix("[").partition("]:")
    return host, port or "22"


def _said(exc: BaseException) -> str:
    return (str(exc).strip() or type(exc).__name__).splitlines()[0]

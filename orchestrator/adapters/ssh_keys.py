"""Checks the keys of hosts, and chooses the user's keys: only known_hosts is trusted."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any, Final

from fabric import Connection
from paramiko import MissingHostKeyPolicy, PKey, SSHClient, SSHException

USER_FILES: Final = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2")
GLOBAL_FILES: Final = ("/etc/ssh/ssh_known_hosts",)


class HostKeyUnknown(SSHException):  # type: ignore[misc]
    """No known_hosts file has the host. `name` is how such a file would call it."""

    def __init__(self, name: str, key: PKey) -> None:
        super().__init__(f"no key is known for {name}")
        self.name = name
        self.key = key


class RefuseUnknown(MissingHostKeyPolicy):  # type: ignore[misc]
    """A first meeting is not taken on trust: what measures and reports as yours must be yours."""

    def missing_host_key(self, _: SSHClient, hostname: str, key: PKey) -> None:
        raise HostKeyUnknown(hostname, key)


def known_hosts_files(connection: Connection) -> tuple[Path, ...]:
    """The files that are believed, the user's first, as ~/.ssh/config names them."""
    said = connection.ssh_config
    users = str(said["userknownhostsfile"]).split() if "userknownhostsfile" in said else USER_FILES
    systems = str(said["globalknownhostsfile"]).split() if "globalknownhostsfile" in said else GLOBAL_FILES
    return tuple(Path(name).expanduser() for name in (*users, *systems))


def verify_host_keys(connection: Connection) -> None:
    """Has a connection believe known_hosts only. Fabric would take any key of a host it does not know."""
    client: SSHClient = connection.client
    client.set_missing_host_key_policy(RefuseUnknown())
    for path in known_hosts_files(connection):
        if path.is_file():
            client.load_system_host_keys(str(path))
    alias = connection.ssh_config.get("hostkeyalias")
    if alias:
        known = client._system_host_keys.lookup(alias)
        name = connection.host if int(connection.port) == 22 else f"[{connection.host}]:{connection.port}"
        for kind in known or ():
            client.get_host_keys().add(name, kind, known[kind])


def authentication(connection: Connection) -> dict[str, Any]:
    """Keys and agent only, as ~/.ssh/config has it: nobody is there to type a password."""
    only = str(connection.ssh_config.get("identitiesonly", "no")).lower() == "yes"
    named = bool(connection.connect_kwargs.get("key_filename"))
    return {"allow_agent": not only, "look_for_keys": not (only and named)}


def sha256_of(key: PKey) -> str:
    """A key's fingerprint as ssh-keygen prints it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(key.asbytes()).digest()).decode().rstrip("=")


def kind_of(key: PKey) -> str:
    """The key's type as ssh-keyscan takes it."""
    name = key.get_name()
    return "ecdsa" if name.startswith("ecdsa") else name.removeprefix("ssh-")

"""Reaches a machine that the user owns over SSH, with Fabric: one connection, which is made again after a loss."""

from __future__ import annotations

import base64
import hashlib
import io
import logging
import os
import pwd
import re
import shlex
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from fabric import Config, Connection, Remote
from invoke.exceptions import CommandTimedOut, ThreadException, UnexpectedExit
from paramiko import (
    Agent,
    AuthenticationException,
    BadHostKeyException,
    ChannelException,
    Message,
    MissingHostKeyPolicy,
    PasswordRequiredException,
    PKey,
    ProxyCommandFailure,
    SFTPError,
    SSHClient,
    SSHConfig,
    SSHConfigDict,
    SSHException,
)
from paramiko.ssh_exception import NoValidConnectionsError

from orchestrator.adapters.hosts.host_operations import (
    MOST_BYTES,
    OUTPUT_MARK,
    Endless,
    answer_in,
    build_command,
    in_sh,
    no_answer,
    said_too_much,
)
from orchestrator.core.errors import BenchError, ConfigError, HostKeyRefused, HostUnfit, PermissionDenied, Unavailable
from orchestrator.core.hosts import HostTarget

# Checks the keys of hosts, and chooses the user's keys: only known_hosts is trusted.


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
    ssh_config = connection.ssh_config
    users = str(ssh_config["userknownhostsfile"]).split() if "userknownhostsfile" in ssh_config else USER_FILES
    systems = str(ssh_config["globalknownhostsfile"]).split() if "globalknownhostsfile" in ssh_config else GLOBAL_FILES
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
        known_keys = client._system_host_keys.lookup(alias)
        name = connection.host if int(connection.port) == 22 else f"[{connection.host}]:{connection.port}"
        for kind in known_keys or ():
            client.get_host_keys().add(name, kind, known_keys[kind])


def authentication_options(connection: Connection) -> dict[str, Any]:
    """Keys and agent only, as ~/.ssh/config has it: nobody is there to type a password."""
    only = str(connection.ssh_config.get("identitiesonly", "no")).lower() == "yes"
    named = connection.connect_kwargs.get("key_filename") or []
    options: dict[str, Any] = {"allow_agent": not only, "look_for_keys": not (only and named)}
    if only and (key := _agent_key([Path(name) for name in named])) is not None:
        options["pkey"] = key
    return options


def _agent_key(files: list[Path]) -> PKey | None:
    """The first key of the agent that one of these files names, as ssh takes it with IdentitiesOnly."""
    public = [blob for file in files if (blob := _public_part(file))]
    if not public:
        return None
    keys = {key.asbytes(): key for key in Agent().get_keys()}
    return next((keys[blob] for blob in public if blob in keys), None)


def _public_part(file: Path) -> bytes:
    """The public key in `file`, in `file.pub`, or before the encrypted part of a private key; empty if none is read."""
    for path in (file.with_name(f"{file.name}.pub"), file):
        try:
            text = path.read_text(encoding="ascii").strip()
            if not text.startswith("-----BEGIN OPENSSH"):
                return base64.b64decode(text.split()[1], validate=True)
            message = Message(base64.b64decode("".join(text.splitlines()[1:-1])).removeprefix(b"openssh-key-v1\0"))
            for _ in range(3):
                message.get_string()
            message.get_int()
            return bytes(message.get_string())
        except (OSError, ValueError, IndexError):
            continue
    return b""


SETTINGS: Final = (
    "hostname", "user", "port", "identitiesonly", "proxyjump", "proxycommand", "hostkeyalias", "userknownhostsfile",
    "globalknownhostsfile",
)  # fmt: skip


class OpenSshSettings(SSHConfig):  # type: ignore[misc]
    """The settings of a host as `ssh -G` prints them, so that Include and Match count; those that paramiko reads where
    there is no ssh. Raises `ConfigError` for a configuration that ssh refuses."""

    def __init__(self, target: HostTarget) -> None:
        super().__init__()
        self.target = target

    def lookup(self, hostname: str) -> SSHConfigDict:
        who = []
        if hostname == self.target.name:
            who += ["-l", self.target.user] if self.target.user else []
            who += ["-p", str(self.target.port)] if self.target.port else []
        home, home_from_environment = _passwd_home(), Path.home()
        if home_from_environment != home:  # ssh itself looks only in the home of passwd
            config = home_from_environment / ".ssh" / "config"
            who += ["-F", str(config) if config.is_file() else "/dev/null"]
        try:
            ran = subprocess.run(
                ["ssh", "-G", *who, "--", hostname],
                stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=CONNECT_S,
            )  # fmt: skip
        except (FileNotFoundError, subprocess.TimeoutExpired):
            return SSHConfig.from_path(str(home_from_environment / ".ssh" / "config")).lookup(hostname)
        if ran.returncode != 0:
            raise ConfigError(
                f"ssh refuses its settings for {hostname}: {(ran.stderr.strip().splitlines() or [''])[0]}",
                hint=f"`ssh -G {hostname}` must print them",
            )
        settings = SSHConfigDict()
        for line in ran.stdout.splitlines():
            key, _, value = line.partition(" ")
            value = value.replace(f"{home}/.ssh/", "~/.ssh/")
            if key == "identityfile":
                path = Path(value.strip('"')).expanduser()
                if path.is_file() or path.with_name(f"{path.name}.pub").is_file():
                    settings.setdefault(key, []).append(str(path))
            elif key in SETTINGS and value != "none":
                settings[key] = value
        if "proxycommand" in settings:
            values = {
                "%%": "%",
                "%n": hostname,
                "%h": settings["hostname"],
                "%p": settings["port"],
                "%r": settings["user"],
            }
            settings["proxycommand"] = re.sub("%[%nhpr]", lambda found: str(values[found[0]]), settings["proxycommand"])
        return settings


class HopConfig(Config):  # type: ignore[misc]
    """Fabric's configuration, which each jump host gets a copy of: with the same reader of settings."""

    def _clone_init_kwargs(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return {**super()._clone_init_kwargs(*args, **kwargs), "ssh_config": self.base_ssh_config}


def _passwd_home() -> Path:
    return Path(pwd.getpwuid(os.getuid()).pw_dir)


def sha256_of(key: PKey) -> str:
    """A key's fingerprint as ssh-keygen prints it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(key.asbytes()).digest()).decode().rstrip("=")


def kind_of(key: PKey) -> str:
    """The key's type as ssh-keyscan takes it."""
    name = key.get_name()
    return "ecdsa" if name.startswith("ecdsa") else name.removeprefix("ssh-")


# Translates what SSH libraries raise into errors that say what happened, to which machine, and what to do next.


LOST: Final = (SSHException, EOFError, ConnectionError, TimeoutError, socket.timeout)
"""What a connection that is cut looks like, from whichever call notices."""

NO_KEYS: Final = "No authentication methods"
"""How paramiko says that there was nothing to try."""


def lost_connection(target: HostTarget, when: str, exc: BaseException | None) -> Unavailable:
    why = f" ({_said(exc)})" if exc is not None else ""
    return Unavailable(
        f"the connection to {target} was lost {when}{why}",
        hint="a run there continues; `bench status` copies what it stored to the bucket",
    )


def not_let_in(target: HostTarget, connection: Connection, exc: Exception) -> BenchError:
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


def unknown_key(target: HostTarget, connection: Connection, exc: HostKeyUnknown) -> HostKeyRefused:
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


def changed_key(target: HostTarget, connection: Connection, exc: BadHostKeyException) -> HostKeyRefused:
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


CONNECT_S: Final = 10
KEEPALIVE_S: Final = 10
TRANSFER_S: Final = 60
CHUNK: Final = 1 << 18
# Its complaints about a connection that is cut are told by us, in our words.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


def _quieter(before: Callable[[threading.ExceptHookArgs], object]) -> Callable[[threading.ExceptHookArgs], None]:
    """The same of the thread that paramiko asks for a file ahead in: whoever reads the file is told."""

    def said(args: threading.ExceptHookArgs) -> None:
        ahead = args.thread is not None and args.thread.name.endswith("(_prefetch_thread)")
        if not (ahead and isinstance(args.exc_value, (*LOST, OSError))):
            before(args)

    return said


threading.excepthook = _quieter(threading.excepthook)


class Bounded(Remote):  # type: ignore[misc]
    """Reads a command's output up to `MOST_BYTES`. Beyond that it raises `Endless` in the thread that reads."""

    read_chunk_size = 1 << 16
    heard = 0

    def read_proc_stdout(self, num_bytes: int) -> bytes:
        return self._counted(super().read_proc_stdout(num_bytes))

    def read_proc_stderr(self, num_bytes: int) -> bytes:
        return self._counted(super().read_proc_stderr(num_bytes))

    def respond(self, buffer_: list[str]) -> None:
        """Nobody watches for words to answer; to look for them joins all that was said, again for each piece."""

    def _counted(self, data: bytes) -> bytes:
        self.heard += len(data)
        if self.heard > MOST_BYTES:
            raise Endless
        return data


class SshShell:
    """The `RemoteShell` of one target. Follows ~/.ssh/config; never asks a question on the terminal."""

    def __init__(self, target: HostTarget) -> None:
        self.target = target
        self._connection: Connection | None = None

    def ask(
        self, operation: str, arguments: Mapping[str, Any], *, python: str = "", timeout_s: float = 60
    ) -> Mapping[str, Any]:
        ran = self._ran(
            in_sh(shlex.join(build_command(operation, arguments, python))), timeout_s, f"asked for {operation}"
        )
        answer = answer_in(ran.stdout, self.target)
        if answer is not None:
            return answer
        self.close()
        if ran.exited == -1:
            raise lost_connection(self.target, "before it answered", None)
        raise no_answer(self.target, ran.exited, ran.stdout.strip(), ran.stderr.strip(), python or "python3")

    def run(self, line: str, *, timeout_s: float = 15) -> tuple[int, str, str]:
        """One command line of `sh` there: exit code, standard output without what a login printed before it, standard
        error."""
        ran = self._ran(in_sh(f"echo {OUTPUT_MARK}\n{line}"), timeout_s, "looked at")
        login, mark, out = str(ran.stdout).partition(f"{OUTPUT_MARK}\n")
        return int(ran.exited), out if mark else login, str(ran.stderr)

    def put(self, data: bytes, path: str) -> None:
        try:
            self._files().putfo(io.BytesIO(data), path)
        except LOST as exc:
            self.close()
            raise lost_connection(self.target, f"while {path} was sent", exc) from exc
        except (OSError, SFTPError) as exc:
            raise HostUnfit(
                f"{path} cannot be written on {self.target}: {exc}", hint=f"on {self.target.name}: `df -h {path}`"
            ) from exc

    def get(self, path: str, *, limit: int) -> bytes | None:
        into = io.BytesIO()
        try:
            with self._files().open(path, "rb") as file:
                file.prefetch(min(file.stat().st_size or 0, limit + 1))
                while chunk := file.read(CHUNK):
                    into.write(chunk)
                    if into.tell() > limit:
                        break
        except FileNotFoundError:
            return None
        except (*LOST, OSError, SFTPError) as exc:
            self.close()
            raise lost_connection(self.target, f"while {path} was fetched", exc) from exc
        return into.getvalue()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        while connection is not None:
            try:
                connection.close()
            except (SSHException, OSError, EOFError):
                pass  # it was lost: that is why it is closed
            connection = connection.gateway if isinstance(connection.gateway, Connection) else None

    def _ran(self, line: str, timeout_s: float, when: str) -> Any:
        """`when` completes "while it was …"."""
        connection = self._connected()
        try:
            return connection.run(line, hide=True, warn=True, in_stream=False, encoding="utf-8", timeout=timeout_s)
        except (*LOST, CommandTimedOut, ThreadException, UnexpectedExit) as exc:
            self.close()
            if isinstance(exc, ThreadException) and any(isinstance(one.value, Endless) for one in exc.exceptions):
                raise said_too_much(self.target, when) from exc
            raise lost_connection(self.target, f"while it was {when}", exc) from exc

    def _files(self) -> Any:
        """The SFTP side of the connection. A server may have none, or a login shell may print into it."""
        connection = self._connected()
        try:
            files = connection.sftp()
            files.get_channel().settimeout(TRANSFER_S)
        except (SFTPError, OSError, *LOST) as exc:
            alive = connection.is_connected
            self.close()
            if not alive:
                raise lost_connection(self.target, "before a file went through", exc) from exc
            raise HostUnfit(
                f"{self.target} runs commands and moves no files by SFTP ({exc or type(exc).__name__})",
                hint=f"`sftp {self.target.name}` must work: sshd needs its subsystem, and a login must print nothing",
            ) from exc
        return files

    def _connected(self) -> Connection:
        """The connection, made now if need be. Its keys are verified on every hop."""
        if self._connection is not None and self._connection.is_connected:
            return self._connection
        self.close()
        connection = Connection(
            self.target.name,
            user=self.target.user or None,
            port=self.target.port,
            connect_timeout=CONNECT_S,
            config=HopConfig(ssh_config=OpenSshSettings(self.target)),
        )
        connection.config.runners.remote = Bounded
        hop: Connection | str | None = connection
        while isinstance(hop, Connection):
            verify_host_keys(hop)
            hop._set(connect_kwargs={**hop.connect_kwargs, **authentication_options(hop)})
            hop = hop.gateway
        self._connection = connection
        try:
            connection.open()
            connection.transport.set_keepalive(KEEPALIVE_S)
        except Exception as exc:
            self.close()
            raise not_let_in(self.target, connection, exc) from exc
        return connection

"""Reaches a machine that the user owns over SSH, with Fabric: one connection, which is made again after a loss."""

from __future__ import annotations

import io
import logging
import shlex
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from fabric import Connection, Remote
from invoke.exceptions import CommandTimedOut, ThreadException, UnexpectedExit
from paramiko import SFTPError, SSHException

from orchestrator.adapters.host_operations import MOST_BYTES, Endless, answer_in, command, no_answer, said_too_much
from orchestrator.adapters.ssh_errors import LOST, lost, not_let_in
from orchestrator.adapters.ssh_keys import authentication, verify_host_keys
from orchestrator.core.errors import HostUnfit
from orchestrator.core.hosts import Target

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

    def __init__(self, target: Target) -> None:
        self.target = target
        self._connection: Connection | None = None

    def ask(
        self, operation: str, arguments: Mapping[str, Any], *, python: str = "", timeout_s: float = 60
    ) -> Mapping[str, Any]:
        ran = self._ran(shlex.join(command(operation, arguments, python)), timeout_s, f"asked for {operation}")
        answer = answer_in(ran.stdout, self.target)
        if answer is not None:
            return answer
        self.close()
        if ran.exited == -1:
            raise lost(self.target, "before it answered", None)
        raise no_answer(self.target, ran.exited, ran.stdout.strip(), ran.stderr.strip(), python or "python3")

    def run(self, line: str, *, timeout_s: float = 15) -> tuple[int, str, str]:
        """One command line of the login shell there: exit code, standard output, standard error."""
        ran = self._ran(line, timeout_s, "looked at")
        return int(ran.exited), str(ran.stdout), str(ran.stderr)

    def put(self, data: bytes, path: str) -> None:
        try:
            self._files().putfo(io.BytesIO(data), path)
        except LOST as exc:
            self.close()
            raise lost(self.target, f"while {path} was sent", exc) from exc
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
            raise lost(self.target, f"while {path} was fetched", exc) from exc
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
            raise lost(self.target, f"while it was {when}", exc) from exc

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
                raise lost(self.target, "before a file went through", exc) from exc
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
        )
        connection.config.runners.remote = Bounded
        hop: Connection | str | None = connection
        while isinstance(hop, Connection):
            verify_host_keys(hop)
            hop.connect_kwargs.update(authentication(hop))
            hop = hop.gateway
        self._connection = connection
        try:
            connection.open()
            connection.transport.set_keepalive(KEEPALIVE_S)
        except Exception as exc:
            self.close()
            raise not_let_in(self.target, connection, exc) from exc
        return connection

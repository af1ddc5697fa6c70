"""Ways to tell a person who is not looking. An alert that cannot be delivered is reported; it never ends a run."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Final

from orchestrator.ports import Notice, Notifier

COMMAND_S: Final = 10.0
WEBHOOK_S: Final = 5.0
Report = Callable[[str], None]
"""Where a failure to deliver is said, e.g. the terminal."""


class TerminalNotifier:
    """Hands notices to the part that owns the terminal."""

    def __init__(self, show: Callable[[Notice], None]) -> None:
        self._show = show

    def notify(self, notice: Notice) -> None:
        self._show(notice)


class CommandNotifier:
    """Runs a command: the notice is JSON on standard input; `BENCH_NOTICE_{KIND,TITLE,TEXT}` are in the environment."""

    def __init__(self, command: str | Sequence[str], report: Report, *, timeout_s: float = COMMAND_S) -> None:
        self._command = shlex.split(command) if isinstance(command, str) else list(command)
        self._report = report
        self._timeout_s = timeout_s

    def notify(self, notice: Notice) -> None:
        environment = {
            "BENCH_NOTICE_KIND": notice.kind,
            "BENCH_NOTICE_TITLE": notice.title,
            "BENCH_NOTICE_TEXT": notice.text,
        }
        name = self._command[0] if self._command else "(empty)"
        try:
            done = subprocess.run(
                self._command,
                input=as_json(notice),
                env=os.environ | environment,
                capture_output=True,
                timeout=self._timeout_s,
            )
        except subprocess.TimeoutExpired:
            self._report(f"the alert command {name} did not end within {self._timeout_s:g} s and was killed")
        except (OSError, ValueError, IndexError) as exc:
            self._report(f"the alert command {name} could not be started: {exc}")
        else:
            if done.returncode != 0:
                error_lines = done.stderr.decode(errors="replace").strip().splitlines()
                self._report(
                    f"the alert command {name} failed with {done.returncode}: "
                    f"{error_lines[-1] if error_lines else 'no message'}"
                )


class WebhookNotifier:
    """Posts the notice as JSON. The URL may hold a secret, so it is never reported."""

    def __init__(self, url: str, report: Report, *, timeout_s: float = WEBHOOK_S) -> None:
        self._url = url
        self._report = report
        self._timeout_s = timeout_s

    def notify(self, notice: Notice) -> None:
        try:
            if not self._url.startswith(("http://", "https://")):
                raise ValueError("its URL does not begin with https:// or http://")
            request = urllib.request.Request(
                self._url, data=as_json(notice), headers={"Content-Type": "application/json"}, method="POST"
            )
            with urllib.request.urlopen(request, timeout=self._timeout_s):
                pass
        except urllib.error.HTTPError as exc:
            with exc:
                self._report(f"the alert webhook answered {exc.code}")
        except (OSError, ValueError) as exc:
            self._report(f"the alert webhook could not be reached: {getattr(exc, 'reason', exc)}")


class Notifiers:
    """Delivers through each of several."""

    def __init__(self, notifiers: Sequence[Notifier]) -> None:
        self._notifiers = tuple(notifiers)

    def notify(self, notice: Notice) -> None:
        for notifier in self._notifiers:
            notifier.notify(notice)


def as_json(notice: Notice) -> bytes:
    """`{"kind", "title", "text", "data"}`, UTF-8."""
    return json.dumps(asdict(notice) | {"data": dict(notice.data)}, sort_keys=True).encode()


def every_way(say: Report, command: str | None, webhook: str | None, *, here: bool = True) -> Notifiers:
    """The terminal, through `say`, where `here`, and what else the user named."""
    ways: list[Notifier] = [TerminalNotifier(lambda notice: say(f"{notice.title}. {notice.text}"))] if here else []
    if command:
        ways.append(CommandNotifier(command, say))
    if webhook:
        ways.append(WebhookNotifier(webhook, say))
    return Notifiers(ways)

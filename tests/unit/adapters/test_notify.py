from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from orchestrator.adapters.clock import SystemClock
from orchestrator.adapters.notify import CommandNotifier, Notifiers, TerminalNotifier, WebhookNotifier
from orchestrator.ports import Notice
from tests.support.patience import PATIENCE_S
from tests.support.ports import deaf_port
from tests.support.scripted_server import Drop, Reply, Stall, in_turn, scripted_server

NOTICE = Notice("budget", "80 % of today's $5", "$4.00 is spent or held", {"window": "day", "threshold": "0.8"})
DOCUMENT = {
    "kind": "budget",
    "title": "80 % of today's $5",
    "text": "$4.00 is spent or held",
    "data": {"window": "day", "threshold": "0.8"},
}


def silent(text: str) -> None:
    raise AssertionError(text)


def python(script: str) -> list[str]:
    return [sys.executable, "-c", script]


def test_the_terminal_is_shown_the_notice() -> None:
    shown: list[Notice] = []
    TerminalNotifier(shown.append).notify(NOTICE)
    assert shown == [NOTICE]


def test_a_command_gets_the_notice_on_standard_input_and_in_its_environment(tmp_path: Path) -> None:
    script = (
        "import json,os,sys; json.dump([json.load(sys.stdin), os.environ['BENCH_NOTICE_KIND'],"
        f"os.environ['BENCH_NOTICE_TITLE'], os.environ['BENCH_NOTICE_TEXT']], open({str(tmp_path / 'out')!r}, 'w'))"
    )
    CommandNotifier(python(script), silent).notify(NOTICE)
    assert json.loads((tmp_path / "out").read_text()) == [DOCUMENT, NOTICE.kind, NOTICE.title, NOTICE.text]


def test_a_command_is_split_like_a_shell_would_and_given_to_no_shell(tmp_path: Path) -> None:
    CommandNotifier(f"touch '{tmp_path}/a b' '{tmp_path}/$(c)'", silent).notify(NOTICE)
    assert {path.name for path in tmp_path.iterdir()} == {"a b", "$(c)"}


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (python("import sys; sys.exit('no such channel')"), "failed with 1: no such channel"),
        (python("import sys; sys.exit(3)"), "failed with 3: no message"),
        (["/nonexistent/alert"], "could not be started"),
        ([], "could not be started"),
        ("", "could not be started"),
    ],
)
def test_a_command_that_fails_is_reported_and_raises_nothing(command: list[str] | str, said: str) -> None:
    reports: list[str] = []
    CommandNotifier(command, reports.append).notify(NOTICE)
    assert len(reports) == 1
    assert said in reports[0]


def test_a_command_that_hangs_is_killed() -> None:
    reports: list[str] = []
    begun = time.monotonic()
    CommandNotifier(python("import time; time.sleep(3600)"), reports.append, timeout_s=0.3).notify(NOTICE)
    assert time.monotonic() - begun < PATIENCE_S
    assert "was killed" in reports[0]


def test_a_webhook_is_sent_the_notice_as_json() -> None:
    with scripted_server(in_turn(Reply(status=204, data=b""))) as server:
        WebhookNotifier(f"{server.url}/hooks/1?k=v", silent).notify(NOTICE)
        (request,) = server.requests
        assert (request.method, request.path, request.json) == ("POST", "/hooks/1", DOCUMENT)
        assert request.headers["Content-Type"] == "application/json"


@pytest.mark.parametrize(
    ("answer", "said"), [(Reply(500), "answered 500"), (Drop(), "not be reached"), (Stall(), "not")]
)
def test_a_webhook_that_fails_is_reported_without_its_address(answer: Reply | Drop | Stall, said: str) -> None:
    reports: list[str] = []
    limit_s = 0.3 if isinstance(answer, Stall) else PATIENCE_S
    with scripted_server(in_turn(answer)) as server:
        WebhookNotifier(f"{server.url}/hooks/secret", reports.append, timeout_s=limit_s).notify(NOTICE)
    assert len(reports) == 1
    assert said in reports[0]
    assert "secret" not in reports[0]


@pytest.mark.parametrize("url", ["http://127.0.0.1:{port}/secret", "file:///etc/passwd", "secret", "http://[secret"])
def test_a_webhook_with_nobody_there_is_reported(url: str) -> None:
    reports: list[str] = []
    WebhookNotifier(url.format(port=deaf_port()), reports.append).notify(NOTICE)
    assert len(reports) == 1
    assert "secret" not in reports[0]


def test_one_way_that_fails_does_not_keep_the_others_from_it() -> None:
    reports: list[str] = []
    shown: list[Notice] = []
    Notifiers([CommandNotifier(["/nonexistent"], reports.append), TerminalNotifier(shown.append)]).notify(NOTICE)
    assert (len(reports), shown) == (1, [NOTICE])


def test_the_clock_is_aware_and_sleeps_no_negative_time() -> None:
    clock = SystemClock()
    before = clock.now()
    clock.sleep(-1)
    clock.sleep(0)
    assert str(before.tzinfo) == "UTC"
    assert clock.now() >= before

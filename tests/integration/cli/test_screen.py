"""What a terminal, a narrow one, a pipe and a script get of the same output."""

from __future__ import annotations

import io
import json
import os
import pty
import shlex
import signal
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from rich.text import Text

from orchestrator.cli.app import COMMANDS, GROUPS, commands_by_group
from orchestrator.cli.examples import EXAMPLES
from orchestrator.cli.render import duration, left_s, live
from orchestrator.cli.screen import Columns, screen
from orchestrator.cli.watch import hint, silent_keys
from orchestrator.core.run import events as ev
from tests.integration.cli.conftest import Bench
from tests.integration.cli.test_render import measuring, replayed, shown
from tests.integration.documents.test_commands import NOT_YET, leaves, parsed, typer_app
from tests.unit.core.builders import Log, at, created, planned, requested


def table() -> Columns:
    made = Columns(droppable=("set by", "commit"))
    for head in ("name", "device", "commit", "set by"):
        made.add_column(head, no_wrap=True)
    made.add_row("main", Text("NVIDIA H200"), Text("1a2b3c4d5e", "bold"), "ada@example.com")
    return made


def test_in_a_pipe_each_row_is_a_line_with_tabs_between_its_cells() -> None:
    out = io.StringIO()
    screen(out).print(table())
    assert out.getvalue() == "name\tdevice\tcommit\tset by\nmain\tNVIDIA H200\t1a2b3c4d5e\tada@example.com\n"


def test_in_a_pipe_no_line_is_wrapped_or_cut() -> None:
    out = io.StringIO()
    screen(out).print("word " * 200, Text("word " * 200))
    assert len(out.getvalue().splitlines()) == 1


def test_ids_stay_whole_where_there_is_prose_to_fold() -> None:
    made = Columns()
    for head in ("run", "state"):
        made.add_column(head, no_wrap=True)
    made.add_row("20261121-040506-l4-7f3a", Text("measuring and going on for ever"))
    out = shown(made, 40)
    assert "20261121-040506-l4-7f3a" in out
    assert "ever" in out


@pytest.mark.parametrize(
    ("width", "heads"),
    [(90, "name device commit set by"), (40, "name device commit"), (25, "name device")],
)
def test_a_narrow_terminal_drops_columns_that_may_go_and_cuts_no_cell(width: int, heads: str) -> None:
    out = shown(table(), width)
    assert out.splitlines()[0].split() == heads.split()
    assert "…" not in out
    assert "NVIDIAH200" in "".join("".join(line[6:] for line in out.splitlines()[1:]).split())


@pytest.mark.parametrize("variable", ["NO_COLOR", "TERM"])
def test_who_wants_no_colour_gets_no_bold_and_no_dim_either(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    out = io.StringIO()
    screen(out).print(Text.assemble(("loud", "bold"), " ", ("quiet", "dim"), " ", ("red", "red")))
    loud = out.getvalue()
    monkeypatch.setenv(variable, "dumb")
    out = io.StringIO()
    screen(out).print(Text.assemble(("loud", "bold"), " ", ("quiet", "dim"), " ", ("red", "red")))
    assert "\x1b[" in loud
    assert out.getvalue() == "loud quiet red\n"


def test_bench_alone_greets_with_every_command_and_three_examples_and_ends_well(bench: Bench) -> None:
    ran = bench()
    assert all(name in ran.out.split() for name in COMMANDS)
    assert ran.out.count("\n  bench ") == 3
    assert max(map(len, ran.out.splitlines())) <= 80


def test_each_command_stands_in_one_group() -> None:
    listed = [name for names in commands_by_group().values() for name in names]
    assert sorted(listed) == sorted(COMMANDS)
    assert len(listed) == len(set(listed))
    assert all(names for names in GROUPS.values())


EVERY = dict(leaves(typer_app()))


@pytest.mark.parametrize("path", EVERY, ids=" ".join)
def test_the_help_of_each_command_has_plain_words_and_an_example_that_is_understood(
    bench: Bench, path: tuple[str, ...]
) -> None:
    out = bench(*path, "--help").out
    assert "<" not in out.partition("Example")[0].replace("<!--", "")
    examples = EXAMPLES.get(" ".join(path), ())
    assert examples or path[0] in NOT_YET
    for line, about in examples:
        assert line in out
        assert about in out
        parsed(tuple(shlex.split(line.split("|")[0].split(">")[0])[1:]))


def test_an_option_of_one_value_is_refused_when_it_is_given_twice(bench: Bench) -> None:
    ran = bench("plan", "--gpu", "l4", "-g", "t4", code=2)
    assert "--gpu was given 2 times" in ran.err
    assert "one command for each" in ran.err
    assert "--limit was given 2 times" in bench("status", "-n", "3", "--limit", "4", code=2).err


@pytest.mark.parametrize(
    "line",
    [
        "launch ''", "launch --gpu=", "plan --gpu ''", "plan --gpu l4 --set ''", "plan --gpu l4 --host ' '",
        "launch --resume ''", "report last --out ''", "report last --into ''", "fetch last --into ''", "site --out ''",
        "site --publish ''", "history --case ''", "history --case x --before ''", "fleet plan ''", "status ''", "new ''",
        "fleet launch --gpu l4 --config ''", "image build --gpu l4 --container ''", "config show ''", "budget set --day ''",
        "cloud weather ''", "prices --region ''", "profile last --case ''", "baseline set '' last", "costs add ''",
        "--project '' reap", "--bucket '' status",
    ],
)  # fmt: skip
def test_a_value_that_is_empty_is_refused_before_anything_is_done(bench: Bench, line: str) -> None:
    assert "is empty" in bench(*shlex.split(line), code=2).err
    assert not (bench.home / "cloud").exists()


@pytest.mark.usefixtures("cloud")
def test_a_note_may_be_empty(bench: Bench) -> None:
    bench("costs", "add", "0.01", "--note", "", "--yes")


@pytest.mark.usefixtures("cloud")
def test_with_json_an_error_is_the_document_and_names_its_code(bench: Bench) -> None:
    ran = bench("plan", "--gpu", "nosuch", "--json", code=2)
    error = json.loads(ran.out)["error"]
    assert (error["kind"], error["exit_code"]) == ("ConfigError", 2)
    assert error["message"] in ran.err
    assert json.loads(bench("plan", "--nosuch", "--json", code=2).out)["error"]["kind"] == "UsageError"
    assert bench("plan", "--gpu", "nosuch", code=2).out == ""


@pytest.mark.parametrize(
    ("us", "said"), [(12.34, "12.3 µs"), (999.9, "999.9 µs"), (19697.7, "19.70 ms"), (2.5e6, "2.50 s")]
)
def test_a_time_is_told_in_the_unit_that_it_is_read_in(us: float, said: str) -> None:
    assert duration(us) == said


def test_what_is_left_is_told_once_a_case_is_done_and_not_when_the_run_is_over() -> None:
    log = measuring()
    assert left_s(replayed(log), at(29)) == pytest.approx(10.0)  # one of two cases took ten seconds
    assert left_s(replayed(Log().add(0, planned())), at(5)) is None
    assert left_s(replayed(Log().add(0, planned())), at(5), 60.0) is None  # no machine works yet
    begun = Log().add(0, planned()).add(3, requested()).add(5, created(4))
    assert left_s(replayed(begun), at(14), 60.0) == pytest.approx(50.0)  # similar runs took a minute from the start
    assert left_s(replayed(begun), at(90), 60.0) is None  # it takes longer than they did
    assert left_s(replayed(log), at(29), 60.0) == pytest.approx(10.0)  # its own cases say more
    assert left_s(replayed(log.add(71, ev.RunClosed(outcome="stopped"))), at(90)) is None


def test_the_live_view_says_what_ctrl_c_does() -> None:
    assert "stops" in hint(replayed(Log().add(0, planned())))
    assert "detaches" in hint(replayed(measuring()))
    assert hint(replayed(measuring().add(71, ev.RunClosed(outcome="stopped")))) == ""


def test_a_run_that_is_over_asks_for_no_machine() -> None:
    never = Log().add(0, planned()).add(1, ev.RunClosed(outcome="stopped"))
    assert "no machine was made" in shown(live(replayed(never), at(9)))
    refused = Log().add(0, planned()).add(1, requested()).add(2, ev.RunClosed(outcome="stopped"))
    assert "asking" not in shown(live(replayed(refused), at(9)))


def test_keys_that_are_typed_while_a_picture_is_drawn_are_not_written_into_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "r") as keyboard:
        monkeypatch.setattr("sys.stdin", keyboard)
        before = termios.tcgetattr(theirs)[3]
        with silent_keys():
            during = termios.tcgetattr(theirs)[3]
        assert before & termios.ECHO
        assert not during & termios.ECHO
        assert during & termios.ISIG, "Ctrl-C is heard"
        assert termios.tcgetattr(theirs)[3] == before
    os.close(ours)


PICTURE = """
import time
from orchestrator.cli.watch import watching
with watching(quiet=False) as watch:
    watch.step("drawn")
    time.sleep(600)
"""


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGHUP])
def test_a_view_ended_by_a_signal_leaves_keys_and_cursor_as_they_were(ending: signal.Signals) -> None:
    ours, theirs = pty.openpty()
    before, said = termios.tcgetattr(theirs), b""
    environment = {**os.environ, "TERM": "xterm"}
    command = ["env", f"--default-signal={ending.name[3:]}", sys.executable, "-c", PICTURE]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as ran:
        while b"drawn" not in said:
            said += os.read(ours, 10_000)
        assert termios.tcgetattr(theirs) != before
        ran.send_signal(ending)
        assert ran.wait() == -ending
    assert termios.tcgetattr(theirs) == before
    os.write(theirs, b"the end")
    while b"the end" not in said:
        said += os.read(ours, 10_000)
    assert said.rfind(b"\x1b[?25l") < said.rfind(b"\x1b[?25h")
    os.close(ours)
    os.close(theirs)


@pytest.mark.usefixtures("cloud")
def test_the_ledger_is_shown_a_page_at_a_time_and_summed_as_a_whole(bench: Bench) -> None:
    for number in range(4):
        bench("costs", "add", "0.25", "--category", f"kind{number}", "--yes")
    out = bench("costs", "--last", "2").out
    assert "kind3" in out
    assert "kind1" not in out
    assert "2 older" in out
    assert "day $1.0000" in out
    assert len(bench("costs", "--json").document["costs"]) == 4
    page = bench("costs", "--json", "--last", "1").document
    assert (len(page["costs"]), page["older"]) == (1, 3)


# A locale that lacks our characters gets others in their place, and never a traceback.


ROOT = Path(__file__).resolve().parents[3]
PROGRAM = """
import sys
from orchestrator.cli.app import main
sys.argv = ["bench", "--version"]
try:
    main()
finally:
    print("1.2× 3 µs ✓ … 字")
"""


@pytest.mark.parametrize(
    ("encoding", "told"),
    [("ascii", "1.2x 3 us + ... ?"), ("latin-1", "1.2× 3 µs + ... ?"), ("utf-8", "1.2× 3 µs ✓ … 字")],
)
def test_what_a_locale_cannot_show_is_written_otherwise(encoding: str, told: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONIOENCODING": encoding},
    )
    assert done.stderr.decode(encoding) == ""
    assert done.stdout.decode(encoding).splitlines()[-1] == told

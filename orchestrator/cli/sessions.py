"""`bench watch`: a verdict on a kernel of your own each time it is saved, from a machine that stays warm."""

from __future__ import annotations

import json as jsonlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from orchestrator.api.finding import find_run
from orchestrator.api.sessions import Leaderboard, SessionDesk, VersionLine, rank_versions
from orchestrator.cli import interrupts
from orchestrator.cli.choices import ChoiceParam, Hosts, Terms, launch_options
from orchestrator.cli.options import group_options, options
from orchestrator.cli.plan import practice_words
from orchestrator.cli.screen import Columns, screen, wrap_text
from orchestrator.cli.terminal import documents, is_stdout_closed, to_plain
from orchestrator.core.errors import ConfigError
from orchestrator.core.run.fold import Run
from orchestrator.core.text import count, log_text
from orchestrator.report.answer import microseconds
from orchestrator.report.text import UNKNOWN, format_estimate
from orchestrator.runs.planning import is_workload

LOOK_S: Final = 0.3
"""How often files are looked at, in seconds."""
ALIVE_S: Final = 5.0
"""How often a session that waits is looked at, in seconds."""
CLOSING_S: Final = 20.0
"""After a Ctrl-C another one does nothing for so long: the machine is being given back."""
SOURCES: Final = frozenset({".py", ".cu", ".cuh", ".h", ".hpp", ".cpp", ".yml", ".json"})
STYLES: Final = {"faster": "bold green", "slower": "red", "same": "cyan", "timed": "cyan", "inconclusive": "yellow"}

Idle = Annotated[
    float,
    typer.Option("--idle", metavar="MINUTES", help="Give the machine back after so long without a save.", min=0.1),
]
Attach = Annotated[
    str, typer.Option("--attach", metavar="RUN", help="Go on with this session, whose client was killed.")
]
JsonLines = Annotated[bool, typer.Option("--json", help="Print one JSON document for each version, on a line.")]


@group_options
def watch(
    ctx: typer.Context,
    choice: ChoiceParam,
    *,
    terms: Terms,
    host: Hosts = None,
    idle: Idle = 10.0,
    attach: Attach = "",
    json: JsonLines = False,
) -> None:
    """Measure your own kernel each time it is saved.

    Rents or takes one machine, keeps it warm, and prints a line for each version: time, ratio to the fastest baseline,
    verdict, and what was wrong. Ctrl-C gives the machine back.
    """
    path = own_file(choice, "watch")
    with versions_view(json=json) as view:
        desk = open_desk(ctx, choice, terms, host, idle, view)
        if attach:
            desk.attach(find_run(desk.wiring, attach))
            for line in desk.lines:
                view.show(line, desk)
        try:
            for _ in saves(path, desk.wiring.clock.sleep, lambda: keep_alive(desk)):
                view.measuring(len(desk.lines) + 1)
                view.show(desk.measure(), desk)
                if is_stdout_closed():
                    break
        except KeyboardInterrupt:
            view.say("giving the machine back")
        finally:
            interrupts.ignore(CLOSING_S, time.monotonic)
            ended = desk.close()
    view.end(desk, ended)


def own_file(choice: ChoiceParam, command: str) -> Path:
    """The workload that a session measures. Raises `ConfigError`."""
    path, hint = choice.config, "`bench new NAME` writes one"
    if path is not None and not path.exists():
        raise ConfigError(f"there is no file {path}", hint=hint)
    if path is None or not is_workload(path):
        raise ConfigError(f"bench {command} needs a file of your own, not {path or 'nothing'}", hint=hint)
    return path


def open_desk(
    ctx: typer.Context, choice: ChoiceParam, terms: Terms, host: list[str] | None, idle: float, view: VersionsView
) -> SessionDesk:
    """The desk for these options. No machine is asked for yet."""
    wiring = options(ctx).wiring()
    wiring.say = view.say
    chosen = launch_options(choice, terms, host)
    if wiring.mode.simulated and not chosen.hosts:
        view.say(practice_words(chosen.gpu or "cpu"))
    return SessionDesk(wiring, chosen, 60 * idle, view.follow)


def keep_alive(desk: SessionDesk) -> None:
    """Drives a session that waits for a save, so that a lost machine is replaced and an idle one is noticed."""
    if desk.live is not None and not desk.live.is_open():
        desk.wiring.say("the machine was given back; the next save gets a new one")
        desk.live = None


def saves(path: Path, sleep: Callable[[float], None], idle: Callable[[], None]) -> Iterator[None]:
    """Yields at once, and then after each change of the files; `idle` is called every few seconds meanwhile."""
    before, waited_s = None, 0.0
    while True:
        now = signature(path)
        if now and now != before:
            before, waited_s = now, 0.0
            yield
            continue
        sleep(LOOK_S)
        waited_s += LOOK_S
        if waited_s >= ALIVE_S:
            waited_s = 0.0
            idle()


def signature(path: Path) -> tuple[tuple[str, int, int], ...]:
    """What changes when a file of a workload is saved; empty while its main file is being replaced."""
    folder = path if path.is_dir() else path.parent
    stamps = []
    try:
        for file in sorted(folder.rglob("*") if path.is_dir() else folder.iterdir()):
            if file.suffix in SOURCES and file.is_file():
                status = file.stat()
                stamps.append((str(file), status.st_mtime_ns, status.st_size))
    except OSError:
        return ()
    return tuple(stamps) if path.exists() else ()


# The screen: one line a version, newest on top.


@dataclass
class VersionsView:
    """Shows versions in a pipe: a line for each, and one for each thing that changes before."""

    console: Console
    json: bool = False
    phase: str = ""

    def say(self, text: str) -> None:
        """One line for a person; with --json on standard error."""
        self.console.print(Text(wrap_text(self.console, log_text(text))), soft_wrap=True)

    def follow(self, run: Run) -> None:
        """Says each new phase of the session that is being opened."""
        if run.phase.value != self.phase:
            self.phase = run.phase.value
            self.say(f"session {run.run_id}: {self.phase.replace('_', ' ')}")

    def measuring(self, version: int) -> None:
        """Says that a version is being measured."""

    def show(self, line: VersionLine, desk: SessionDesk) -> None:
        """Shows a new version."""
        if self.json:
            typer.echo(jsonlib.dumps(to_plain(documents.VersionDocument.of(line, schema=1)), allow_nan=False))
        else:
            self.say(line_text(line, best=line is desk.best))

    def end(self, desk: SessionDesk, ended: Run | None) -> None:
        """Says what the session came to: the best version among all that were compared, and the cost."""
        cost = Decimal(0) if ended is None else ended.cost(desk.wiring.clock.now())
        board = rank_versions(desk.lines, cost)
        if len(board.standings) > 1 and not self.json:
            for text in board_lines(board):
                self.say(text)
        if ended is not None:
            self.say(f"session {ended.run_id}: {count(len(desk.lines), 'version')}, ${cost}, {ended.phase.value}")


def board_lines(board: Leaderboard, most: int = 10) -> list[str]:
    """The best versions of a session with their rank intervals and costs, and what an improvement cost."""
    lines = [f"corrected over {count(len(board.standings), 'version')}:"]
    for standing in board.standings[:most]:
        ranks = f"rank {standing.first}" + (f" to {standing.last}" if standing.last > standing.first else "")
        mark = "  improves" if standing.improves else ""
        lines.append(f"{ranks}  {line_text(standing.line, best=False)}  ${standing.line.usd:.4f}{mark}")
    price = board.usd_per_improvement
    if price is not None:
        lines.append(f"{count(board.improvements, 'improvement')}, ${price} each with starting and waiting")
    return lines


class LiveVersions(VersionsView):
    """Shows versions in a terminal: a table, newest on top."""

    def __init__(self, console: Console, live: Live) -> None:
        super().__init__(console)
        self.live = live
        self.note = ""
        self.desk: SessionDesk | None = None

    def say(self, text: str) -> None:
        self.note = log_text(text)
        self.live.update(self.picture(), refresh=True)

    def measuring(self, version: int) -> None:
        self.say(f"version {version}: measuring")

    def show(self, line: VersionLine, desk: SessionDesk) -> None:  # noqa: ARG002 - the desk has it
        self.desk, self.note = desk, "waiting for the next save; Ctrl-C gives the machine back"
        self.live.update(self.picture(), refresh=True)

    def picture(self) -> RenderableType:
        """The table and what goes on."""
        note = Text(self.note, "dim")
        if self.desk is None:
            return note
        return Group(note, versions_table(self.desk.lines, self.desk.best, most=max(4, self.console.height - 4)))

    def end(self, desk: SessionDesk, ended: Run | None) -> None:
        """Prints the end below the table, which stays."""
        VersionsView(self.console).end(desk, ended)


def versions_table(lines: Sequence[VersionLine], best: VersionLine | None, most: int) -> Columns:
    """The newest versions, newest first, the best one marked."""
    table = Columns("version", "time", "ratio", "verdict", "", right=("version", "time", "ratio"))
    for line in list(reversed(lines))[:most]:
        reason = line.reason or "; ".join(filter(None, ("best" if line is best else "", fault_text(line))))
        table.add_row(*line_cells(line)[:3], Text(line.verdict, STYLES.get(line.verdict, "bold red")), reason)
    return table


def line_cells(line: VersionLine) -> tuple[str, str, str]:
    """Version, time and ratio as text."""
    time_text = UNKNOWN if line.time_us is None else microseconds(line.time_us)
    return f"v{line.version}", time_text, UNKNOWN if line.ratio is None else format_estimate(line.ratio)


def fault_text(line: VersionLine) -> str:
    """What was wrong with other kernels of a version; empty if nothing was."""
    return "; ".join(f"wrong: {name}: {reason}" for name, reason in line.faults.items())


def line_text(line: VersionLine, *, best: bool) -> str:
    """A version in one line."""
    version, time_text, ratio = line_cells(line)
    against = f" against {line.baseline}" if line.baseline else ""
    what = f"{time_text}  {ratio}{against}" if line.time_us is not None else ""
    taken = f"({line.seconds:.1f} s)" if line.seconds else ""
    faults, mark = fault_text(line), "best" if best and not line.reason else ""
    parts = (version, what, line.verdict, line.reason, faults, mark, taken)
    return "  ".join(part for part in parts if part)


@contextmanager
def versions_view(*, json: bool) -> Iterator[VersionsView]:
    """The view for this terminal or pipe."""
    console = screen(sys.stderr if json else None)
    if json or not console.is_terminal:
        yield VersionsView(console, json)
        return
    with Live(console=console, refresh_per_second=4) as live:
        yield LiveVersions(console, live)

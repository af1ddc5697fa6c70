"""Following a run: a live view in a terminal, plain lines elsewhere, nothing but errors with --json."""

from __future__ import annotations

import os
import signal
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from types import FrameType
from typing import Any, Final

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from orchestrator.cli.plan import describe_measurements
from orchestrator.cli.render import beside_the_end, duration, live, usd
from orchestrator.cli.screen import screen, wrap_text
from orchestrator.core.errors import Unavailable
from orchestrator.core.plan.plan import LaunchPlan
from orchestrator.core.results import is_control
from orchestrator.core.run.fold import Run
from orchestrator.core.run.status import waiting_text
from orchestrator.core.text import format_clock, log_text
from orchestrator.ports import INTERRUPTION
from orchestrator.wiring import utc_now

# Handles the keyboard while a live view is drawn, and leaves the terminal as it was however that ends.


ENDINGS: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Signals that end a program without another word."""
SHOW_CURSOR: Final = b"\x1b[?25h"


@contextmanager
def silent_keys() -> Iterator[None]:
    """Keeps the terminal from showing typed keys while a live view is drawn, and shows the cursor again where a signal
    ends the view. Ctrl-C works as always. No key is kept back if standard input is not a terminal."""
    before = _modes()

    def put_back() -> None:
        if before is not None:
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, before)
        if sys.stdout.isatty():
            os.write(sys.stdout.fileno(), SHOW_CURSOR)

    with _last(put_back):
        if before is None:
            yield
            return
        keyboard = sys.stdin.fileno()
        try:
            quiet = [*before[:3], before[3] & ~(termios.ECHO | termios.ICANON), *before[4:]]
            termios.tcsetattr(keyboard, termios.TCSADRAIN, quiet)
            yield
        finally:
            try:
                termios.tcflush(keyboard, termios.TCIFLUSH)  # what was typed at the picture is no command for the shell
            finally:
                termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def _modes() -> list[Any] | None:
    try:
        return termios.tcgetattr(sys.stdin.fileno())
    except (OSError, ValueError, termios.error):
        return None


@contextmanager
def _last(act: Callable[[], None]) -> Iterator[None]:
    """Within it, a signal that ends the program has this done first. One that is ignored, or heard by somebody else,
    stays so."""

    def end(number: int, _: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        try:
            act()
        finally:
            os.kill(os.getpid(), number)

    ours = [number for number in ENDINGS if signal.getsignal(number) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def watching(*, quiet: bool, now: Callable[[], datetime] = utc_now) -> Iterator[LiveView]:
    """`now` is the time that ages and costs are shown at: the bucket's, where there is one."""
    console = screen(sys.stderr if quiet else None)
    if quiet or not console.is_terminal:
        yield PlainWatch(console, now)
        return
    with silent_keys(), Live(console=console, refresh_per_second=8, transient=False) as view:
        yield LiveWatch(console, view, now)


class LiveView:
    """Shows the progress of a run that is followed. `machine_works` says whether its machine exists, as last seen."""

    machine_works = False
    is_left = False
    """Whether Ctrl-C was pressed while a machine was requested: the run is detached as soon as it has the machine."""
    expected_s: float | None = None
    """The seconds that a machine works in similar runs, by the plan; None if no earlier run shows it."""

    def seen(self, run: Run) -> None:
        """Shows the run, and remembers whether a machine works for it."""
        self.machine_works = run.vm is not None and run.vm.open and run.vm.started_at is not None
        self.show(run)

    def say(self, text: str) -> None: ...
    def step(self, text: str) -> None: ...
    def planned(self, plan: LaunchPlan) -> None:
        likely = plan.expectation
        self.expected_s = likely.work.work_s if likely is not None and likely.measuring_s is not None else None

    def show(self, run: Run) -> None: ...

    def detached(self, run: Run) -> None:  # noqa: ARG002 - a picture shows it once more
        self.say("detached; the run continues")

    def trouble(self, error: Unavailable, pause_s: float) -> None:
        machine = " (the run itself continues)" if self.machine_works else ""
        self.say(f"{str(error).removesuffix('.')}; retry in {pause_s:.0f} s{machine}")


class PlainWatch(LiveView):
    """One line for each thing that changes: for logs, pipes and CI."""

    def __init__(self, console: Console, now: Callable[[], datetime] = utc_now) -> None:
        self.console = console
        self._now = now
        self._said: set[str] = set()
        self._latest = datetime.min.replace(tzinfo=UTC)
        """The latest time that a line was written at: times of lines only grow."""

    def say(self, text: str) -> None:
        self.console.print(Text(wrap_text(self.console, log_text(text))), soft_wrap=True)

    def step(self, text: str) -> None:
        self.say(text)

    def planned(self, plan: LaunchPlan) -> None:
        super().planned(plan)
        for notice in plan.notices:
            self.say(f"note: {notice}")
        price = f", {usd(plan.ceiling_usd)} at most" if plan.ceiling_usd else ""
        self.say(
            f"plan: {describe_measurements(plan)}, {format_clock(plan.ttl_s)} at most"
            f"{'' if plan.mode.simulated else price}"
            f"{'' if self.expected_s is None else f', about {format_clock(self.expected_s)} by similar runs'}"
        )

    def show(self, run: Run) -> None:
        for moment, text in sorted(self._lines(run, self._now()), key=lambda line: line[0]):
            if text not in self._said:
                self._said.add(text)
                self._latest = max(moment, self._latest)  # times of lines only grow
                self.say(f"{format_clock(max(0.0, (self._latest - run.created_at).total_seconds())):>6}  {text}")

    def _lines(self, run: Run, now: datetime) -> Iterator[tuple[datetime, str]]:
        """What is known of the run, each with its time: that at which it began, or now."""
        for fact in run.exhausted:
            yield now, f"{fact.zone}: {fact.code}"
        if waits := waiting_text(run):
            yield now, waits
        if run.vm is not None and run.vm.started_at is not None:
            price = f" ({usd(run.vm.usd_per_hour)}/h)" if run.vm.usd_per_hour else ""
            where = "on this machine, as practice" if run.simulated else f"in {run.vm.zone}{price}"
            yield min(run.vm.started_at, now), f"{run.vm.name} runs {where}"
        for span in run.spans:
            yield min(span.started_at, now), f"phase {span.phase} (attempt {span.attempt})"
        for heal in run.heals:
            yield now, f"healed {heal.what}: {heal.detail}"
        if (observed := run.current.observed) is not None and run.closed is None:
            yield now, f"{observed.case_id or 'this step'}: at {observed.place} after {observed.seconds:.0f} s"
        for done in run.measured:
            shown = [(name, median) for name, median in done.median_us.items() if not is_control(name)]
            medians = "  ".join(f"{name} {duration(median)}" for name, median in shown) or "nothing timed"
            yield now, f"case {done.index}/{done.of} {done.case_id}: {medians}"
        for diagnosis in beside_the_end(run):
            yield now, diagnosis


class LiveWatch(LiveView):
    """A live view that is redrawn in place."""

    def __init__(self, console: Console, view: Live, now: Callable[[], datetime] = utc_now) -> None:
        self.console = console
        self.view = view
        self._now = now

    def say(self, text: str) -> None:
        self.console.print(Text(wrap_text(self.console, log_text(text)), "yellow"))

    def step(self, text: str) -> None:
        self.view.update(Text(f"{text} …", "dim"))

    def planned(self, plan: LaunchPlan) -> None:
        super().planned(plan)
        for notice in plan.notices:
            self.console.print(Text(f"note: {notice}", "dim"))

    def show(self, run: Run) -> None:
        picture = live(run, self._now(), followed=True, expected_s=self.expected_s)
        self.view.update(Group(picture, KeyHint(run, self.is_left)))

    def detached(self, run: Run) -> None:
        self.view.update(live(run, self._now()))  # what to do now is said below it, by the last words


@dataclass(frozen=True, slots=True)
class KeyHint:
    """The line that says what Ctrl-C does, at each moment in which it is drawn: also while a request is waited for."""

    run: Run
    is_left: bool

    def __rich__(self) -> Text:
        return Text(hint(self.run, is_left=self.is_left), "dim")


def hint(run: Run, *, is_left: bool = False) -> str:
    """The line that says what Ctrl-C does at the moment."""
    asked = any(vm.generation == run.generation for vm in run.vms)
    if run.closed is not None:
        return ""
    if run.stop is not None:
        return f"the run is being stopped; a later Ctrl-C leaves that to `bench stop {run.run_id}`"
    if (is_left or (asked and INTERRUPTION.requested)) and not run.goes_on_alone:
        return "detaches as soon as there is a machine; Ctrl-C stops the run"
    if run.goes_on_alone:
        return "Ctrl-C detaches; the run continues"
    if run.waiting is not None:
        return "Ctrl-C detaches; a process in the background waits on"
    waits = "waits for the machine, then detaches; twice stops the run"
    return f"Ctrl-C {waits if asked else 'stops the run: no machine exists yet'}"

"""`bench tune`: the best values of the parameters that a kernel's file declares, within dollars or minutes."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import typer

from orchestrator.api.tuning import Search, Trial, Tuning, is_left_out, recall_winner, remember_winner
from orchestrator.cli import interrupts
from orchestrator.cli.choices import ChoiceParam, Hosts, Terms
from orchestrator.cli.options import Json, group_options
from orchestrator.cli.screen import screen
from orchestrator.cli.sessions import CLOSING_S, VersionsView, line_text, open_desk, own_file
from orchestrator.cli.terminal import documents, print_answer
from orchestrator.core.candidates import Strategy, TuneSpace, Values, read_space, with_values
from orchestrator.core.errors import ConfigError, LocalError
from orchestrator.core.ledger.unlisted import parse_dollars
from orchestrator.core.text import count, os_error_text
from orchestrator.report.text import format_estimate

UNMEASURED = "not measured again"


@dataclass(frozen=True, slots=True)
class SearchTerms:
    """How combinations are tried, for how long and how much, and what is done with the winner."""

    strategy: Annotated[
        Strategy, typer.Option("--strategy", help="exhaustive: in order; random; racing: drop what is clearly slower.")
    ] = "racing"
    minutes: Annotated[float, typer.Option("--minutes", metavar="N", help="Try no more after so long.", min=0.1)] = 60.0
    max_usd: Annotated[str, typer.Option("--max-usd", metavar="USD", help="The most that it may cost.")] = ""
    remembered: Annotated[
        bool, typer.Option("--remembered", help="Measure nothing: take what was found before on this GPU.")
    ] = False
    apply: Annotated[bool, typer.Option("--apply", help="Write the winner into the file's own best = {...}.")] = False

    def limit(self, terms: Terms) -> Terms:
        """The terms, with --max-usd as the cap of the run. Raises `ConfigError`."""
        if not self.max_usd:
            return terms
        most = parse_dollars(self.max_usd, option="--max-usd")
        return replace(terms, set_=[*terms.overrides, f"budget.per_run_usd={most}"])


@group_options
def tune(
    ctx: typer.Context,
    choice: ChoiceParam,
    *,
    terms: Terms,
    host: Hosts = None,
    search_terms: SearchTerms,
    json: Json = False,
) -> None:
    """Find the best values of a kernel's parameters.

    The file declares them: tune = {"block": [64, 128]} and kernel_mine(x, *, block). Each combination is judged like
    any kernel. The winner is measured again on fresh samples, beside the baselines: publish that ratio.
    """
    terms = search_terms.limit(terms)
    path, source, space = read_file(choice)
    view = VersionsView(screen(sys.stderr if json else None), json)
    desk = open_desk(ctx, choice, terms, host, 10.0, view)
    if search_terms.remembered:
        values = recall_winner(desk, space)
        if search_terms.apply:
            write_best(path, space, values)
        document = _document(Tuning((), None, ()), "", values if search_terms.apply else {}, values)
        print_answer(document, f"remembered: {values_text(values)}", json=json)
        return
    view.say(f"{path.name}: {count(len(space), 'combination')}, {search_terms.strategy}")
    minutes = search_terms.minutes
    until = time.monotonic() + 60 * minutes
    search = Search(
        desk,
        space,
        source,
        search_terms.strategy,
        is_over=lambda: "" if time.monotonic() < until else f"{minutes:g} minutes are over",
        show=lambda trial: view.say(trial_text(trial)),
    )
    try:
        made = search.run()
    finally:
        interrupts.ignore(CLOSING_S, time.monotonic)
        ended = desk.close()
    if ended is not None:
        remember_winner(desk.wiring, space, made, ended.run_id)
    applied = made.winner.values if search_terms.apply and made.winner is not None else {}
    if applied:
        write_best(path, space, applied)
    session = "" if ended is None else f"session {ended.run_id}, ${ended.cost(desk.wiring.clock.now())}"
    print_answer(_document(made, session, applied), *ending_lines(made, applied, session), json=json)


def _document(made: Tuning, session: str, applied: Values, remembered: Values = MappingProxyType({})) -> Any:
    return lambda: documents.TuneDocument.of(
        made, schema=1, session=session, tried=len(made.trials), remembered=dict(remembered), applied=dict(applied)
    )


def read_file(choice: ChoiceParam) -> tuple[Path, str, TuneSpace]:
    """The file to tune, its text, and the parameters that it declares. Raises `ConfigError`."""
    path = own_file(choice, "tune")
    path = path / f"{path.resolve().name}.py" if path.is_dir() else path
    if path.suffix != ".py" or not path.is_file():
        raise ConfigError(f"bench tune needs one Python file, not {path}", hint="`bench docs sessions` has an example")
    source = path.read_text(encoding="utf-8")
    return path, source, read_space(source, path.name)


def write_best(path: Path, space: TuneSpace, values: Values) -> None:
    """Writes values that the file declares into its `best`. The file may have been edited meanwhile: what it declares
    now counts. Raises `ConfigError` and `LocalError`."""
    source = path.read_text(encoding="utf-8")
    text = with_values(source, read_space(source, space.file), values)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise LocalError(f"cannot write {path}: {os_error_text(exc)}", hint="check your permissions on it") from exc


def values_text(values: Values) -> str:
    """`block=64 stages=2`."""
    return " ".join(f"{name}={value}" for name, value in values.items())


def trial_text(trial: Trial) -> str:
    """A combination in one line; one that was measured again says so."""
    line = trial.again or trial.line
    text = "left out by valid(…)" if is_left_out(line) else line_text(line, best=False)
    return f"{values_text(trial.values)}  {'again: ' if trial.again else ''}{text}"


def ending_lines(made: Tuning, applied: Values, session: str) -> list[str]:
    """What a search ends with: the winner's published ratio, and the luckier one of the search beside it."""
    lines = [f"{count(len(made.trials), 'combination')} tried, {made.dropped} dropped early; {session}"]
    if made.stopped:
        lines.append(f"ended early: {made.stopped}")
    if made.winner is None:
        return [*lines, "no combination was right in every case"]
    for place, trial in enumerate((made.winner, *made.runners_up)):
        fresh, search = trial.again, trial.line
        ratio = UNMEASURED if fresh is None or fresh.ratio is None else format_estimate(fresh.ratio)
        luck = "" if search.ratio is None else f" (in the search {format_estimate(search.ratio)})"
        lines.append(f"{'best' if not place else 'next'}  {values_text(trial.values)}  {ratio}{luck}")
    if applied:
        lines.append(f"written: best = {dict(applied)}")
    return lines

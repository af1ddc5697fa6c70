"""Reads the folder, file or run that the user named, and makes its report."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from orchestrator.analysis import second_clock
from orchestrator.analysis.regimes import Setting
from orchestrator.analysis.samples import Reader
from orchestrator.analysis.study import study
from orchestrator.api.finding import LOCAL, find_run
from orchestrator.core.errors import ConfigError, LocalError, NotFound
from orchestrator.core.results import ResultsUnreadable
from orchestrator.core.text import clean_line
from orchestrator.report.document import report_document, summary_csv, verdicts_csv
from orchestrator.report.html import report_page
from orchestrator.report.markdown import report_markdown
from orchestrator.report.report import REPEAT, Report
from orchestrator.runs.engine import Engine
from orchestrator.wiring import Wiring, csv_lines, fetch_run, open_folder, write_atomically


def report_of(wiring_of: Callable[[], Wiring], named: str) -> tuple[Report, Path]:
    """The report of a folder, a CSV, or a run (fetched if it is not here), and the folder it is in. Only a run that is
    not here asks for the wiring."""
    for path in (Path(named), LOCAL / named):
        if _is_there(path):
            return read_report(path), path if path.is_dir() else path.parent
    if "/" in named:
        raise NotFound(f"folder not found: {named}", hint="`bench fetch RUN --into FOLDER` makes such a folder")

    wiring = wiring_of()
    run_id = find_run(wiring, named)
    folder = fetch_run(wiring.bucket, Engine(wiring.world(), run_id).look(), LOCAL).folder
    return read_report(folder), folder


def _is_there(path: Path) -> bool:
    """Raises `LocalError` for a name that no file can have, and in a folder that may not be looked into."""
    try:
        return path.exists()
    except (OSError, ValueError) as exc:
        why = getattr(exc, "strerror", None) or exc
        raise LocalError(f"cannot open {clean_line(str(path), 200)}: {why}") from exc


def read_report(path: Path) -> Report:
    """The report of a folder or a CSV. Raises `NotFound`, `ResultsUnreadable`, `LocalError`."""

    folder = open_folder(path)
    reader = Reader()
    notes = list(folder.notes)
    for source in folder.csvs:
        try:
            reader.read(csv_lines(source), source.name)
        except ResultsUnreadable as exc:
            if len(folder.csvs) == 1:
                raise
            notes.append(f"Left out: {exc}.")
    groups = reader.groups()
    result = study(groups, reader.told())
    clock = tuple(one for file in folder.clocks for one in second_clock.read_cupti_times(csv_lines(file)))
    watched = tuple(one for file in folder.clocks for one in second_clock.read_watched(csv_lines(file)))
    return Report(result, folder.environment, folder.build, folder.manifest, tuple(notes), folder.spec, clock, watched)


def select_settings(report: Report, named: Sequence[str]) -> tuple[Setting, ...]:
    """The settings of a report that `--regime` named: a regime, a regime with its caches (`burst-cold`), or `all`. The
    first where none is named. Raises `ConfigError`."""
    settings = report.study.settings
    if not named:
        return settings[:1]
    chosen_settings = []
    for name in named:
        fitting = [one for one in settings if name in ("all", one.regime, one.slug)]
        if not fitting:
            there = ", ".join(one.slug for one in settings) or "none"
            raise ConfigError(f"--regime {name}: the run has {there}", hint="--regime all takes every one")
        chosen_settings += fitting
    return tuple(dict.fromkeys(chosen_settings))


def write_files(
    report: Report, folder: Path, settings: Sequence[Setting] = (), *, everything: bool = False
) -> tuple[Path, ...]:
    """report.html, report.md, report.json, summary.csv and verdicts.csv in `folder`; where no fetch has made it, also
    repeat.yaml, as far as that is known. Raises `LocalError`."""

    texts = {
        "report.html": report_page(report, everything=everything),
        "report.md": report_markdown(report, settings),
        "report.json": json.dumps(report_document(report), indent=1, allow_nan=False) + "\n",
        "summary.csv": summary_csv(report),
        "verdicts.csv": verdicts_csv(report),
    }
    if again := report.again():
        texts[REPEAT] = json.dumps(again, indent=1, sort_keys=True) + "\n"  # JSON is YAML
    for name, text in texts.items():
        write_atomically(folder / name, text.encode())
    return tuple(folder / name for name in texts)

"""The report as one HTML file. It fetches nothing, runs no script, and can be printed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from orchestrator.analysis.regimes import Setting
from orchestrator.analysis.study import Study
from orchestrator.core.bundled import convention
from orchestrator.core.text import count
from orchestrator.report import distributions, figures, rates, tables
from orchestrator.report.page import Box, Code, Fold, Link, Page, Part, Section, Table, Text, drawn, written
from orchestrator.report.report import Report, headline_of, sentences_of
from orchestrator.report.text import common_parts, in_words, labels


def page(
    report: Report,
    *,
    everything: bool = False,
    nav: Sequence[Link] = (),
    state: Sequence[Part] = (),
    more: Sequence[Section] = (),
) -> str:
    """The whole file. With `everything` the speed-up figure has the slowest baseline too. On a site, `nav` links to the
    other pages, `state` says how the run went, and `more` has further sections about it."""
    study = report.study
    names = labels(study.case_ids)
    sections = [
        Section("Result", [*_summary(report)]),
        Section("Side by side", _side_by_side(study, names)),
        Section("Speed-up by case", _speedups(study, everything=everything)),
    ]
    for part in study.parts():
        sections += [Section(title, parts) for title, parts in _part(part, names, several=len(study.settings) > 1)]
    sections.append(Section("Correctness", _errors(study)))
    if words := report.second_clock():
        told = tables.watched_launches(report.watched, names) if report.watched else None
        sections.append(
            Section("A second clock", [Text(words), told or tables.second_clock(study, report.clock, names)])
        )
    sections.append(Section("Not timed", tables.not_timed(study)))
    sections += more
    sections += [
        Section("How this was measured", [Text(_method(study))]),
        Section("Environment", [*_environment(report)]),
    ]
    kept = [one for one in sections if one.parts]
    head = [*state, *_head(report)]
    return written(Page(f"{report.title} · {study.run_id}", report.title, head, kept, nav))


def _head(report: Report) -> Iterable[Part]:
    """What ran where, the command that runs it again, and the warnings."""
    yield Text(" · ".join(report.device_facts()))
    study = report.study
    facts = [*report.run_facts(), study.regime, count(study.measurements, "measurement"), report.cases]
    yield Text(" · ".join(fact for fact in facts if fact), "soft")
    if command := report.command():
        if report.own_machine:
            yield Text("On the machine that was measured, or one like it:", "soft")
        yield Code(command)
    yield from (Text(words, "warn") for words in report.warnings())


def _summary(report: Report) -> Iterable[Part]:
    """What each regime means, and the results in words."""
    for part in report.study.parts():
        setting = part.settings[0] if part.settings else Setting("")
        in_words = [Text(setting.meaning, "soft")] if setting.meaning else []
        in_words += [Text(words, "lead") for words in [headline_of(part)] if words]
        in_words += [Text(words) for words in sentences_of(part, report.planned)]
        if in_words:
            yield Box(setting.name.capitalize() or "Result", in_words)
    for words in (report.second_clock(), report.money(), report.time()):
        if words:
            yield Text(words)


def _fewer(cases: int) -> str:
    drawn_cases = len(figures.shown(range(cases)))
    return f" Of {count(cases, 'case')}, {drawn_cases} are drawn; the tables have all." if drawn_cases < cases else ""


def _side_by_side(study: Study, names: Mapping[str, str]) -> list[Part]:
    if not study.contrasts:
        return []
    note = "The rival is the fastest baseline of the case in that regime."
    return [_shared(study, note), tables.side_by_side(study, names)]


def _speedups(study: Study, *, everything: bool) -> list[Part]:
    beside = " Regimes are side by side on one scale and are never combined." if len(study.settings) > 1 else ""
    left = figures.left_out(study, everything=everything)
    without = f" {' and '.join(left)} is far slower and is not drawn; the tables have it." if left else ""
    return drawn(
        figures.speedup(study, everything=everything),
        "Each mark is the median of the ratios of latencies measured in the same block, with its 95 % interval. "
        f"The grey band is how much {study.subject} differs from itself: a mark within it shows no difference.{beside}"
        f"{without}{_fewer(len(study.case_ids))}",
        figures.speedup(study, everything=everything, width=figures.SLIM),
    )


def _errors(study: Study) -> list[Part]:
    caption = (
        "The errors are those on the inputs that were timed. An implementation that fails its check is not timed."
        f"{_fewer(len(study.case_ids))}"
    )
    return drawn(figures.errors(study), caption, figures.errors(study, figures.SLIM))


def _part(part: Study, names: Mapping[str, str], *, several: bool) -> Iterable[tuple[str, list[Part]]]:
    """The figures and tables of one setting, each with its title."""
    title = part.settings[0].name.capitalize() if several else "Measurements"
    parts: list[Part] = [Text(part.settings[0].meaning, "soft")] if several and part.settings[0].meaning else []
    board, caption = rates.by_size(part)
    parts += drawn(board, caption, rates.by_size(part, figures.SLIM)[0])
    if part.contrasts:
        parts += [_shared(part, CORRECTED), tables.verdicts(part, names)]
    if any(timing.timed for case in part.cases for timing in case.timings):
        parts += [Text(f"What ran, and its median time. {tables.MARKS}", "soft"), tables.kernels(part, names)]
    known = [case.roof for case in part.cases if case.roof is not None]
    roof = (
        f" The roof: {known[0].source}." if known else " No data sheet is known for this device, so there is no roof."
    )
    counted = convention(case.axes for case in part.cases)
    under = f"TFLOP/s by {counted}.{roof}"
    every: list[Part] = drawn(figures.roofline(part), under, figures.roofline(part, figures.SLIM))
    every += drawn(
        distributions.latencies(part),
        "Every measurement is a dot; a box is the middle half, and a bar is the median. The slowest 1 % are "
        f"drawn at the edge.{_fewer(len(part.cases))}",
    )
    every += drawn(
        distributions.over_time(part),
        "Each dot is one measurement. Steps and slopes that all implementations share come from the machine; those of "
        "only one come from that implementation. The slowest 0.5 % are drawn at the edge.",
    )
    if parts and any(timing.timed for case in part.cases for timing in case.timings):
        every.append(tables.times(part, names))
        parts.append(Fold("Every number: rate and roof, distributions, the run over time, all times", every))
    yield title, parts


CORRECTED = "Each cell: ratio, 95 % interval, verdict; p-values are corrected for every comparison of the run."


def _shared(study: Study, more: str) -> Text:
    common = "-".join(common_parts(study.case_ids))
    shared = f"All cases share {common}. " if common else ""
    return Text(f"{shared}A ratio over 1: {study.subject} is faster. {more}", "soft")


METHOD = (
    "In every block each implementation is measured once: in random order in odd blocks, and in the reverse order in "
    "even ones. Ratios are computed within blocks; intervals come from a bootstrap over blocks. faster and slower need "
    "all of three conditions: an interval that excludes 1, a signed-rank test that holds after Holm’s correction over "
    "the whole run, and a ratio beyond the noise floor, which is how much one implementation differs from itself. same "
    "means that the interval lies within 1 % of 1 (or within the noise floor, up to 3 %). Everything else is "
    "inconclusive. Nothing is decided about an implementation whose medians in burst and graph differ by more than 1.3 "
    "times, whose launch was not hidden, or whose time is below the timer's resolution. Each regime is judged alone."
)


def _method(study: Study) -> str:
    """A paragraph on how the run was measured and, where operations are counted, on how they are counted."""
    rated = any(not math.isnan(timing.tflops) for case in study.cases for timing in case.timings)
    return f"{METHOD} TFLOP/s by {convention(case.axes for case in study.cases)}." if rated else METHOD


def _environment(report: Report) -> Iterable[Part]:
    known = {**report.environment, **{f"build {key}": value for key, value in report.build.items()}}
    known |= {
        key: report.manifest[key] for key in ("gpu", "image", "mode", "started_at", "vms") if key in report.manifest
    }
    lines = [
        [key.replace("_", " "), in_words(value)]
        for key, value in known.items()
        if value not in (None, "", [], {}) and key not in ("schema", "build schema", "build details")
    ]
    if lines:
        yield Table("Environment", ("what", "value"), lines, long=(1,))

"""The report as one HTML file: nothing is fetched, nothing is run, and it prints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape

from orchestrator.analysis.regimes import Setting
from orchestrator.analysis.roofs import CONVENTION
from orchestrator.analysis.study import Study
from orchestrator.report import distributions, figures, tables
from orchestrator.report.page import figure, framed, table
from orchestrator.report.report import Report, headline_of, sentences_of
from orchestrator.report.text import common_parts, count, in_words, labels


def page(report: Report) -> str:
    """The whole file."""
    study = report.study
    facts = [study.run_id, f"torch {report.environment['torch']}" if report.environment.get("torch") else ""]
    facts += [study.regime, count(study.measurements, "measurement"), count(len(study.case_ids), "case")]
    names = labels(study.case_ids)
    several = len(study.settings) > 1
    parts = [
        f"<h1>{escape(report.title)}</h1>",
        f'<p class="soft">{escape(" · ".join(fact for fact in facts if fact))}</p>',
        *(f'<p class="warn">{escape(words)}</p>' for words in report.warnings()),
        *_summary(report),
        _speedups(study),
    ]
    if several and study.contrasts:
        said = "The rival is the fastest baseline of the case in that regime. Nothing is summed over regimes."
        parts += ["<h2>Side by side</h2>", _shared(study, said), tables.side_by_side(study, names)]
    for part in study.parts():
        parts += _part(part, names, several=several)
    errors = "On the very inputs that were timed. What fails its check is not timed."
    parts.append(figure("Correctness", figures.errors(study), errors + _fewer(len(study.case_ids))))
    if reasons := tables.not_timed(study):
        parts += ["<h2>Not timed</h2>", reasons]
    return framed(f"{report.title} · {study.run_id}", [*parts, *_method(report)])


def _summary(report: Report) -> Iterable[str]:
    """What each regime means, and the result in words."""
    for part in report.study.parts():
        setting = part.settings[0] if part.settings else Setting("")
        told = [f"<h3>{escape(setting.name)}</h3>"] if setting.name else []
        told += [f'<p class="soft">{escape(setting.meaning)}</p>'] if setting.meaning else []
        told += [f'<p class="lead">{escape(words)}</p>'] if (words := headline_of(part)) else []
        told += [f"<p>{escape(words)}</p>" for words in sentences_of(part, len(report.study.case_ids))]
        yield f'<div class="setting">{"".join(told)}</div>' if told else ""
    if words := report.money():
        yield f"<p>{escape(words)}</p>"


def _fewer(cases: int) -> str:
    drawn = len(figures.shown(range(cases)))
    return f" Of {cases} cases, {drawn} are drawn; the tables have all." if drawn < cases else ""


def _speedups(study: Study) -> str:
    beside = " Regimes stand side by side on one scale; none is summed with another." if len(study.settings) > 1 else ""
    return figure(
        "Speed-up by case",
        figures.speedup(study),
        f"Each mark is the median of the ratios of latencies measured in the same block, with its 95 % interval. "
        f"The grey band is what {study.subject} shows against itself: a mark within it means nothing.{beside}"
        f"{_fewer(len(study.case_ids))}",
    )


def _part(part: Study, names: Mapping[str, str], *, several: bool) -> Iterable[str]:
    """The figures and tables of one setting."""
    level = 3 if several else 2
    if several:
        yield f"<h2>{escape(part.settings[0].name.capitalize())}</h2>"
        yield f'<p class="soft">{escape(part.settings[0].meaning)}</p>'
    fewer = _fewer(len(part.cases))
    yield figure(
        "Latency distributions",
        distributions.latencies(part),
        "Every measurement is a dot; boxes hold the middle half, bars stand at medians. The slowest hundredth is "
        f"drawn at the edge.{fewer}",
        level=level,
    )
    known = [case.roof for case in part.cases if case.roof is not None]
    roof = (
        f" The roof: {known[0].source}." if known else " No data sheet is known for this device, so there is no roof."
    )
    yield figure("Rate and roof", figures.roofline(part), f"TFLOP/s by {CONVENTION}.{roof}", level=level)
    yield figure(
        "Over time",
        distributions.over_time(part),
        "Each dot is one measurement. Steps and slopes that all implementations share are the machine's; what only one "
        "shows is its own. The slowest half per cent is drawn at the edge.",
        level=level,
    )
    if part.contrasts:
        yield f"<h{level}>Verdicts</h{level}>{_shared(part, CORRECTED)}"
        yield tables.verdicts(part, names)
    if any(timing.timed for case in part.cases for timing in case.timings):
        yield f"<h{level}>Times</h{level}>"
        yield tables.times(part, names)


CORRECTED = "p is of the signed-rank test, corrected for every comparison of the run."


def _shared(study: Study, more: str) -> str:
    common = "-".join(common_parts(study.case_ids))
    shared = f"All cases share {common}. " if common else ""
    return f'<p class="soft">{escape(shared)}A ratio over 1: {escape(study.subject)} is faster. {escape(more)}</p>'


def _method(report: Report) -> Iterable[str]:
    yield "<h2>How this was measured</h2>"
    yield (
        "<p>In every block each implementation is measured once, in random order in odd blocks and turned around in "
        "even ones. Ratios are taken within blocks; intervals come from a bootstrap over blocks. <b>faster</b> and "
        "<b>slower</b> need three things at once: an interval without 1, a signed-rank test that holds after Holm’s "
        "correction over the whole run, and a ratio beyond the noise floor, which is what one implementation shows "
        "against itself. <b>same</b> is an interval within 1 % of 1 (or the noise floor, up to 3 %); anything else is "
        f"<b>inconclusive</b>. Each regime is judged alone. TFLOP/s by {escape(CONVENTION)}.</p>"
    )
    known = {**report.environment, **{f"build {key}": value for key, value in report.build.items()}}
    known |= {
        key: report.manifest[key] for key in ("gpu", "image", "mode", "started_at", "vms") if key in report.manifest
    }
    lines = [
        [escape(key.replace("_", " ")), escape(in_words(value))]
        for key, value in known.items()
        if value not in (None, "", [], {}) and key not in ("schema", "build schema", "build details")
    ]
    if lines:
        body = table(("environment", ""), lines, wrap=(1,))
        yield f"<h2>Environment</h2>{body}"

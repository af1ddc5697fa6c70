"""The report as one HTML file. It fetches nothing, runs no script, and can be printed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from orchestrator.analysis.regimes import Setting
from orchestrator.analysis.study import Study
from orchestrator.core.bundled import counting_convention
from orchestrator.core.text import count
from orchestrator.report import boards, figures, tables
from orchestrator.report.answer import FAULTS, HERE, failures, rows_of
from orchestrator.report.page import (
    Box,
    Code,
    Fold,
    Link,
    Page,
    PageTable,
    Part,
    Section,
    Text,
    Verdicts,
    figure_parts,
    write_page,
)
from orchestrator.report.report import Report, headlines_of, sentences_of
from orchestrator.report.text import case_labels, common_parts, display_name, format_estimate, format_ratio, in_words


def report_page(
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
    names = case_labels(study.case_ids)
    sections = [
        Section("Speed-up by case", _speedups(study, everything=everything)),
        Section("Every kernel and case", _glance(study, names)),
        Section("Which of the kernels", _places(study, names)),
        Section("Not timed", tables.not_timed(study)),
        Section("Notes", [Text(words, "note") for words in report.notes_after()]),
    ]
    for part in study.parts():
        sections += [Section(title, parts) for title, parts in _part(part, names, several=len(study.settings) > 1)]
    sections.append(Section("Correctness", _errors(study)))
    if clock_text := report.second_clock():
        watched_table = tables.watched_launches(report.watched, names) if report.watched else None
        sections.append(
            Section(
                "A second clock", [Text(clock_text), watched_table or tables.second_clock(study, report.clock, names)]
            )
        )
    sections += more
    sections += [
        Section("How this was measured", [*_repeated(report), *_further(report), Text(_method(study))]),
        Section("Environment", [*_environment(report)]),
    ]
    kept = [one for one in sections if one.parts]
    head = [*state, *_head(report)]
    return write_page(Page(f"{report.title} · {study.run_id}", report.title, head, kept, nav))


def _head(report: Report) -> Iterable[Part]:
    """What ran where, what is wrong, and a verdict for each kernel."""
    study = report.study
    yield Text(
        " · ".join((*report.device_facts()[1:], *([study.regime] if study.regime else []), report.cases)), "soft"
    )
    yield from (
        Verdicts(failure.implementation, failure.badge, "wrong" if failure.is_wrong else "slower", failure.where)
        for failure in failures(study, FAULTS)
    )
    yield from (Text(words, "warn") for words in report.incomplete())
    for part in study.parts()[:1]:
        yield from (one for name in part.kernels if (one := _kernel_verdict(part, name)) is not None)
    yield from (Text(one.text, "soft") for one in failures(study, [HERE]))
    if other_settings := [part.settings[0].name for part in study.parts()[1:] if part.contrasts]:
        yield Text(f"These are of {study.settings[0].name}; below also {' and '.join(other_settings)}.", "soft")


def _kernel_verdict(part: Study, kernel: str) -> Part | None:
    """How a kernel compares with the fastest baseline of each case: its commonest verdict as a badge, and words. None
    for one that failed in every case, of which its failure says all."""
    best = [one for case in part.cases if (one := case.against_fastest(kernel)) is not None]
    if not best:
        if any(one.implementation == kernel for one in failures(part)):
            return None
        return Verdicts(kernel, "not compared", "soft", "no case was timed together with a baseline")
    counts = Counter(one.verdict.value for one in best)
    (word, most), *other_counts = counts.most_common()
    ratios = sorted(one.ratio.mid for one in best)
    if len(best) == 1:
        headline = f"{format_estimate(best[0].ratio)} against {display_name(best[0].baseline)}"
        headline += f" ({best[0].doubt})" if best[0].doubt else ""
    else:
        headline = ", ".join(f"{name} in {number}" for name, number in [(word, most), *other_counts])
        ends = " to ".join(dict.fromkeys(map(format_ratio, (ratios[0], ratios[-1]))))
        headline += f" of {count(len(best), 'case')}; {ends} the fastest baseline"
    return Verdicts(kernel, word if not other_counts else f"mostly {word}" if most * 2 > len(best) else "mixed",
                    word if most * 2 > len(best) else "inconclusive", headline)  # fmt: skip


def _glance(study: Study, names: Mapping[str, str]) -> list[Part]:
    rows = rows_of(study)
    if not any(row.contrast is not None or row.style == "wrong" for row in rows):
        return []
    return [_shared(study, ""), tables.answers(rows, names, several=len(study.kernels) > 1)]


def _places(study: Study, names: Mapping[str, str]) -> list[Part]:
    """Which of several kernels is the fastest, in the first setting."""
    parts: list[Part] = []
    for part in study.parts()[:1]:
        if (table := tables.places(part, names)) is not None:
            headline = (
                "1 is the fastest. Kernels that share places (1 to 2) cannot be told apart. These comparisons are "
                "corrected for each other, apart from those with baselines."
            )
            parts = [Text(headline, "soft"), table]
    return parts


def _further(report: Report) -> Iterable[Part]:
    """The results in more words, and cost and time."""
    study = report.study
    facts = [*report.run_facts(), count(study.measurements, "measurement")]
    yield Text(" · ".join(facts), "soft")
    for part in study.parts():
        setting = part.settings[0] if part.settings else Setting("")
        in_words = [Text(setting.meaning, "soft")] if setting.meaning else []
        in_words += [Text(words) for words in (*headlines_of(part), *sentences_of(part, report.planned))]
        if in_words:
            yield Box(setting.name.capitalize() or "Result", in_words)
    for words in (report.money(), report.energy(), report.time()):
        if words:
            yield Text(words)


def _repeated(report: Report) -> Iterable[Part]:
    """The command that measures the same again."""
    if command := report.command():
        if report.own_machine:
            yield Text("On the machine that was measured, or one like it:", "soft")
        yield Code(command)


def _fewer(cases: int) -> str:
    drawn_cases = len(figures.sample_items(range(cases)))
    return f" Of {count(cases, 'case')}, {drawn_cases} are drawn; the tables have all." if drawn_cases < cases else ""


def _speedups(study: Study, *, everything: bool) -> list[Part]:
    """The speed-ups of each kernel, in a figure each."""
    parts: list[Part] = []
    for one in study.of_kernels():
        if not one.contrasts:
            continue
        beside = " Regimes are side by side on one scale." if len(study.settings) > 1 else ""
        hidden_names = figures.left_out(one, everything=everything)
        without = (
            f" {' and '.join(hidden_names)} is far slower and is not drawn; the tables have it." if hidden_names else ""
        )
        if len(study.kernels) > 1:
            parts.append(Text(one.subject, "kernel"))
        parts += figure_parts(
            figures.speedup_board(one, everything=everything),
            f"{one.subject}: median ratio with its 95 % interval; right of 1 is faster. Within the grey band it "
            f"differs no more than from itself.{beside}{without}{_fewer(len(study.case_ids))}",
            figures.speedup_board(one, everything=everything, width=figures.SLIM),
        )
    return parts


def _errors(study: Study) -> list[Part]:
    caption = (
        "The errors are those on the inputs that were timed. An implementation that fails its check is not timed."
        f"{_fewer(len(study.case_ids))}"
    )
    return figure_parts(figures.error_board(study), caption, figures.error_board(study, figures.SLIM))


def _part(part: Study, names: Mapping[str, str], *, several: bool) -> Iterable[tuple[str, list[Part]]]:
    """The figures and tables of one setting, each with its title."""
    title = part.settings[0].name.capitalize() if several else "Measurements"
    meaning = part.settings[0].meaning if several else ""
    parts: list[Part] = [Fold(f"What {part.settings[0].name} means", [Text(meaning)])] if meaning else []
    board, caption = boards.by_size(part)
    parts += figure_parts(board, caption, boards.by_size(part, figures.SLIM)[0])
    if part.contrasts:
        parts += [_shared(part, CORRECTED), tables.verdict_table(part, names)]
    if any(timing.timed for case in part.cases for timing in case.timings):
        parts += [Text(f"What ran, and its median time. {tables.MARKS}", "soft"), tables.kernel_table(part, names)]
    roofs = [case.roof for case in part.cases if case.roof is not None]
    roof = (
        f" The roof: {roofs[0].source}." if roofs else " No data sheet is known for this device, so there is no roof."
    )
    counted = counting_convention(case.axes for case in part.cases)
    under = f"TFLOP/s by {counted}.{roof}"
    every: list[Part] = figure_parts(figures.roofline_board(part), under, figures.roofline_board(part, figures.SLIM))
    every += figure_parts(
        boards.latency_board(part),
        "Every measurement is a dot; a box is the middle half, and a bar is the median. The slowest 1 % are "
        f"drawn at the edge.{_fewer(len(part.cases))}",
    )
    every += figure_parts(
        boards.over_time(part),
        "Each dot is one measurement. Steps and slopes that all implementations share come from the machine; those of "
        "only one come from that implementation. The slowest 0.5 % are drawn at the edge.",
    )
    if parts and any(timing.timed for case in part.cases for timing in case.timings):
        every.append(tables.times_table(part, names))
        parts.append(Fold("Every number: rate and roof, distributions, the run over time, all times", every))
    yield title, parts


CORRECTED = (
    "Each cell: ratio, 95 % interval, verdict; p-values are corrected for every comparison with a baseline in the run."
)


def _shared(study: Study, more: str) -> Text:
    common = "-".join(common_parts(study.case_ids))
    shared = f"All cases share {common}. " if common else ""
    return Text(f"{shared}A ratio over 1: the kernel is faster. {more}", "soft")


METHOD = (
    "In every block each implementation is measured once: in random order in odd blocks, and in the reverse order in "
    "even ones. Ratios are computed within blocks; intervals come from a bootstrap over blocks. faster and slower "
    "need all of three conditions: an interval that excludes 1, a signed-rank test that holds after Holm’s correction "
    "over all comparisons of the case, and a ratio beyond the noise floor, which is how much one implementation "
    "differs from itself. same means that the interval lies within 1 % of 1 (or within the noise floor, up to 3 %). "
    "Everything else is inconclusive. Nothing is decided about an implementation whose medians in burst and graph "
    "differ by more than 1.3 times, whose launch was not hidden, or whose time is below the timer's resolution. Each "
    "regime is judged alone."
)


def _method(study: Study) -> str:
    """A paragraph on how the run was measured and, where operations are counted, on how they are counted."""
    rated = any(not math.isnan(timing.tflops) for case in study.cases for timing in case.timings)
    return f"{METHOD} TFLOP/s by {counting_convention(case.axes for case in study.cases)}." if rated else METHOD


def _environment(report: Report) -> Iterable[Part]:
    facts = {**report.environment, **{f"build {key}": value for key, value in report.build.items()}}
    facts |= {
        key: report.manifest[key] for key in ("gpu", "image", "mode", "started_at", "vms") if key in report.manifest
    }
    hidden = {"schema", "build schema", "build details"}
    if report.simulated:  # the embedded cloud's own names, which no machine has
        hidden |= {"zone", "machine_type", "image", "vms", "mode"}
    lines = [
        [key.replace("_", " "), in_words(value)]
        for key, value in facts.items()
        if value not in (None, "", [], {}) and key not in hidden
    ]
    if lines:
        yield PageTable("Environment", ("what", "value"), lines, long=(1,))

"""The report as one HTML file: nothing is fetched, nothing is run, and it prints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from orchestrator.analysis.roofs import CONVENTION
from orchestrator.analysis.study import Case, Contrast
from orchestrator.core.results import is_control
from orchestrator.report import distributions, figures
from orchestrator.report.palette import DARK, FIGURE_CSS, LIGHT, variables
from orchestrator.report.report import Report
from orchestrator.report.svg import Board
from orchestrator.report.text import UNKNOWN, backend, common_parts, count, digits, labels, percent, ratio, within

CSS = f"""
:root{{color-scheme:light dark;{variables(LIGHT)}}}
@media (prefers-color-scheme:dark){{:root{{{variables(DARK)}}}}}
@media print{{:root{{color-scheme:light;{variables(LIGHT)}}}}}
*{{box-sizing:border-box}}
body{{margin:0 auto;max-width:62rem;padding:1.5rem 1rem 4rem;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}}
h1{{font-size:1.7rem;line-height:1.2;margin:.2rem 0 .4rem}}h2{{font-size:1.2rem;margin:2.4rem 0 .4rem}}
p{{margin:.4rem 0;max-width:46rem}}.lead{{font-size:1.1rem}}.soft,figcaption,caption{{color:var(--soft)}}
.warn{{border-left:.25rem solid var(--bad);padding:.3rem .8rem;margin:.6rem 0;background:var(--band)}}
figure{{margin:.6rem 0}}.wide{{overflow-x:auto}}svg{{display:block;min-width:43rem;width:100%;height:auto}}
figcaption,caption{{font-size:.9rem;text-align:left;max-width:46rem}}
table{{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums;width:100%}}
th,td{{padding:.28rem .6rem;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}}
th{{font-weight:600;border-bottom:1.5px solid var(--soft)}}th:first-child,td:first-child{{text-align:left}}
td.left,th.left{{text-align:left}}td.wrap{{white-space:normal;text-align:left}}
.faster{{color:var(--good);font-weight:600}}.slower{{color:var(--bad);font-weight:600}}
{FIGURE_CSS}
@media print{{body{{max-width:none;padding:0;font-size:10pt}}figure,tr{{break-inside:avoid}}h2{{break-after:avoid}}
.wide{{overflow:visible}}svg{{min-width:0}}table{{font-size:8pt}}th,td{{padding:.15rem .35rem}}}}
""".replace("\n", "")


def page(report: Report) -> str:
    """The whole file."""
    study = report.study
    facts = [study.run_id, f"torch {report.environment['torch']}" if report.environment.get("torch") else ""]
    facts += [f"{study.regime} regime" if study.regime else "", count(study.measurements, "measurement")]
    facts += [count(len(study.cases), "case")]
    parts = [
        f"<h1>{escape(report.title)}</h1>",
        f'<p class="soft">{escape(" · ".join(fact for fact in facts if fact))}</p>',
        *(f'<p class="warn">{escape(words)}</p>' for words in report.warnings()),
        f'<p class="lead">{escape(report.headline())}</p>' if report.headline() else "",
        *(f"<p>{escape(words)}</p>" for words in report.sentences()),
        *_figures(report),
        *_tables(report),
        *_method(report),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        # A browser asks for an icon where none is named; an empty one is asked of nobody.
        '<link rel="icon" href="data:,">'
        f"<title>{escape(report.title)} · {escape(study.run_id)}</title><style>{CSS}</style></head>"
        f"<body>{''.join(parts)}</body></html>\n"
    )


def _figures(report: Report) -> Iterable[str]:
    study = report.study
    left = len(study.cases) - len(figures.shown_cases(study.cases))
    fewer = f" Of {len(study.cases)} cases, {len(study.cases) - left} are drawn; the tables have all." if left else ""
    yield _figure(
        "Speed-up by case",
        figures.speedup(study),
        f"Each mark is the median of the ratios of latencies measured in the same block, with its 95 % interval. "
        f"The grey band is what {study.subject} shows against itself: a mark within it means nothing.{fewer}",
    )
    yield _figure(
        "Latency distributions",
        distributions.latencies(study),
        "Every measurement is a dot; boxes hold the middle half, bars stand at medians. The slowest hundredth is "
        f"drawn at the edge.{fewer}",
    )
    known = [case.roof for case in study.cases if case.roof is not None]
    roof = (
        f" The roof: {known[0].source}." if known else " No data sheet is known for this device, so there is no roof."
    )
    yield _figure("Rate and roof", figures.roofline(study), f"TFLOP/s by {CONVENTION}.{roof}")
    yield _figure(
        "Over time",
        distributions.over_time(study),
        "Each dot is one measurement. Steps and slopes that all implementations share are the machine's; what only one "
        "shows is its own. The slowest half per cent is drawn at the edge.",
    )
    yield _figure(
        "Correctness",
        figures.errors(study),
        "On the very inputs that were timed. What fails its check is not timed." + fewer,
    )


def _figure(title: str, board: Board | None, caption: str) -> str:
    if board is None:
        return ""
    head = f"<h2>{escape(title)}</h2>"
    return f'{head}<figure><div class="wide">{board.svg()}</div><figcaption>{escape(caption)}</figcaption></figure>'


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, left: Sequence[int] = ()) -> str:
    """Cells are HTML already. Columns in `left` are words, the first always is."""
    mark = [' class="left"' if place in left else "" for place in range(len(heads))]
    head = "".join(f'<th scope="col"{m}>{escape(name)}</th>' for name, m in zip(heads, mark, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{m}>{cell}</td>" for cell, m in zip(row, mark, strict=True)) + "</tr>" for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _tables(report: Report) -> Iterable[str]:
    study = report.study
    names = labels([case.case_id for case in study.cases])
    common = "-".join(common_parts(list(names)))
    shared = f"All cases share {common}. " if common else ""
    if study.contrasts:
        yield "<h2>Verdicts</h2>"
        yield (
            f'<p class="soft">{escape(shared)}A ratio over 1: {escape(study.subject)} is faster. p is of the '
            "signed-rank test, corrected for every row of this table.</p>"
        )
        heads = ("case", "against", "ratio", "95 % interval", "p", "effect", "noise", "verdict")
        rows = (_verdict(names[case.case_id], one) for case in study.cases for one in case.contrasts)
        yield table(heads, rows, left=(1, 7))
    if any(timing.timed for case in study.cases for timing in case.timings):
        yield "<h2>Times</h2>"
        yield from _times(study.cases, names)
    reasons: dict[tuple[str, str], int] = {}
    for case in study.cases:
        for one in case.timings:
            if one.skipped and not is_control(one.implementation):
                reasons[one.implementation, one.skipped] = reasons.get((one.implementation, one.skipped), 0) + 1
    if reasons:
        yield "<h2>Not timed</h2>"
        lines = ([escape(name), str(cases), escape(reason)] for (name, reason), cases in reasons.items())
        yield table(("implementation", "cases", "reason"), lines, left=(2,)).replace(
            '<td class="left">', '<td class="wrap">'
        )


def _verdict(name: str, one: Contrast) -> list[str]:
    found = one.paired
    p = "&lt; 0.0001" if one.p < 1e-4 else f"{one.p:.4f}"
    noise = f"{percent(one.noise.floor)}" if one.noise is not None else UNKNOWN
    word = f'<span class="{one.verdict.value}">{one.verdict.value}</span>'
    return [
        escape(name), escape(backend(one.baseline)), ratio(found.ratio.mid), within(found.ratio), p,
        f"{found.test.effect:+.2f}", noise, word,
    ]  # fmt: skip


def _times(cases: Sequence[Case], names: dict[str, str]) -> Iterable[str]:
    timed = [t for case in cases for t in case.timings if t.timed]
    roof = any(t.roof_percent == t.roof_percent for t in timed)
    held = any(t.held_percent == t.held_percent for t in timed)
    joules = any(t.joules == t.joules for t in timed)
    heads = ["case", "implementation", "backend", "median µs", "95 % interval", "p5", "p95", "TFLOP/s"]
    heads += (["% of roof"] if roof else []) + (["% at held clock"] if held else []) + (["mJ a call"] if joules else [])
    heads += ["throttled", "max error"]
    rows = []
    for case in cases:
        for t in case.timings:
            if not t.timed:
                continue
            places = 2 if t.median_us.mid < 100 else 1
            row = [
                escape(names[case.case_id]), escape(t.implementation), escape(t.backend), digits(t.median_us.mid, 4),
                within(t.median_us, places=places), digits(t.p5_us), digits(t.p95_us), digits(t.tflops),
            ]  # fmt: skip
            row += ([digits(t.roof_percent)] if roof else []) + ([digits(t.held_percent)] if held else [])
            row += [digits(t.joules * 1e3)] if joules else []
            rows.append([*row, percent(t.throttled, places=0), digits(t.max_abs_error, 2)])
    yield table(heads, rows, left=(1, 2))


def _method(report: Report) -> Iterable[str]:
    yield "<h2>How this was measured</h2>"
    yield (
        "<p>In every block each implementation is measured once, in random order in odd blocks and turned around in "
        "even ones. Ratios are taken within blocks; intervals come from a bootstrap over blocks. <b>faster</b> and "
        "<b>slower</b> need three things at once: an interval without 1, a signed-rank test that holds after Holm’s "
        "correction over the whole run, and a ratio beyond the noise floor, which is what one implementation shows "
        "against itself. <b>same</b> is an interval within 1 % (or the noise floor) of 1; anything else is "
        f"<b>inconclusive</b>. TFLOP/s by {escape(CONVENTION)}.</p>"
    )
    known = {**report.environment, **{f"build {key}": value for key, value in report.build.items()}}
    known |= {
        key: report.manifest[key] for key in ("gpu", "image", "mode", "started_at", "vms") if key in report.manifest
    }
    lines = [
        [escape(key.replace("_", " ")), escape(str(value))]
        for key, value in known.items()
        if value not in (None, "", [], {}) and key not in ("schema", "build schema", "build details")
    ]
    if lines:
        body = table(("environment", ""), lines, left=(1,)).replace('<td class="left">', '<td class="wrap">')
        yield f"<h2>Environment</h2>{body}"

"""What a person sees of fetched results: a line a case, each implementation's median, the kernel against the best."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from orchestrator.adapters.fetch import Fetched
from orchestrator.core.results import Summary, is_control

KERNEL = "bench"


def results_view(fetched: Fetched) -> RenderableType:
    parts: list[RenderableType] = [_headline(fetched), _table(fetched.summaries)]
    skipped = list(_skips(fetched.summaries))
    parts += [Text(line, "dim") for line in skipped[:8]]
    parts.append(
        Text.assemble(("in ", "dim"), str(fetched.folder), ("/  report.html  measurements.csv  summary.csv", "dim"))
    )
    if not fetched.complete:
        state = fetched.state.replace("_", " ")
        parts.append(Text(f"partial: {fetched.cases} of {fetched.cases_total} cases; the run is {state}", "yellow"))
    return Group(*parts)


def _headline(fetched: Fetched) -> Text:
    return Text.assemble(
        (fetched.run_id, "bold"),
        f"  {fetched.measurements} measurements of {fetched.cases} cases on ",
        (fetched.device or "an unknown device", "bold"),
    )


def _table(summaries: Iterable[Summary]) -> RenderableType:
    """Medians in µs. The last column: the kernel against the fastest baseline of the case; over 1 is faster."""
    rows: dict[tuple[str, str], dict[str, Summary]] = {}
    for summary in summaries:
        if is_control(summary.implementation):
            continue
        rows.setdefault((summary.case_id, summary.regime), {})[summary.implementation] = summary
    several = len({regime for _, regime in rows}) > 1
    timed = (s.implementation for case in rows.values() for s in case.values() if s.median_us is not None)
    names = sorted(dict.fromkeys(timed), key=lambda name: name != KERNEL)
    compared = KERNEL in names and len(names) > 1
    common = common_parts(list(dict.fromkeys(case_id for case_id, _ in rows)))
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("-".join(common) or "case", no_wrap=True)
    if several:
        table.add_column("regime", no_wrap=True)
    for name in names:
        table.add_column(name.removeprefix("sdpa:"), justify="right", no_wrap=True)
    if compared:
        table.add_column("vs best", justify="right", no_wrap=True)
    for (case_id, regime), case in rows.items():
        cells = [_cell(case.get(name)) for name in names]
        if compared:
            cells.append(_ratio(case))
        name = "-".join(part for part in case_id.split("-") if part not in common)
        table.add_row(name, *([regime] if several else []), *cells)
    legend = "median µs; after the kernel's own column, PyTorch SDPA's backends" if compared else "median µs"
    return Group(table, Text(legend, "dim"))


def common_parts(case_ids: Sequence[str]) -> list[str]:
    """The parts of a case id that all of several cases have: said once, above the column, instead of on every line."""
    if len(case_ids) < 2:
        return []
    shared = set(case_ids[0].split("-")).intersection(*(case_id.split("-") for case_id in case_ids[1:]))
    return [part for part in case_ids[0].split("-") if part in shared]


def _cell(summary: Summary | None) -> Text:
    if summary is None or summary.median_us is None:
        return Text("–", "dim")
    return Text(f"{summary.median_us:.1f}")


def _ratio(case: dict[str, Summary]) -> Text:
    kernel = case.get(KERNEL)
    rivals = [s.median_us for name, s in case.items() if name != KERNEL and s.median_us is not None]
    if kernel is None or kernel.median_us is None or not rivals:
        return Text("–", "dim")
    ratio = min(rivals) / kernel.median_us
    return Text(f"{ratio:.2f}x", "green" if ratio >= 1 else "yellow")


def _skips(summaries: Iterable[Summary]) -> Iterable[str]:
    """Each reason once, with how many cases it left out."""
    cases: dict[tuple[str, str], set[str]] = {}
    for summary in summaries:
        if summary.skipped and not is_control(summary.implementation):
            cases.setdefault((summary.implementation, summary.skipped), set()).add(summary.case_id)
    for (name, reason), left_out in cases.items():
        yield f"not timed: {name} in {len(left_out)} cases: {reason}"

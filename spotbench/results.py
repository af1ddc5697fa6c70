"""What a run measured, as typed data."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orchestrator.analysis.case import Contrast
from orchestrator.api.results import read_report, write_files
from orchestrator.report.answer import wrong_first
from orchestrator.report.report import Report
from spotbench.money import Dollars, dollars


@dataclass(frozen=True, slots=True)
class Timing:
    """One implementation on one case in one regime. Times are microseconds: the median, and its 95 % interval. Where
    nothing was timed, they are NaN and `skipped` says why; `joules_per_call` is NaN where energy is not given."""

    case_id: str
    axes: Mapping[str, int | float | bool | str]
    regime: str
    cache: str
    implementation: str
    backend: str
    count: int
    median_us: float
    low_us: float
    high_us: float
    max_abs_error: float
    skipped: str
    joules_per_call: float = math.nan


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a subject, one of the kernels, compares with a baseline or with another kernel on one case in one regime.
    `ratio` is how many times as fast the subject is, from `low` to `high` (95 %). `verdict` is `faster`, `slower`,
    `same` or `inconclusive`; `doubt` says why it is the last."""

    case_id: str
    regime: str
    cache: str
    subject: str
    baseline: str
    verdict: str
    ratio: float
    low: float
    high: float
    doubt: str


@dataclass(frozen=True, slots=True)
class Results:
    """A run's results. `status` is the run's last phase (`succeeded`; `incorrect` where an implementation was wrong),
    empty for a folder of which that is not known; `cost_usd` is what it cost, None where no price is known; `folder`
    holds every file, `report.html` and `measurements.csv` among them."""

    run_id: str
    device: str
    status: str
    cost_usd: Dollars | None
    headlines: tuple[str, ...]
    warnings: tuple[str, ...]
    timings: tuple[Timing, ...]
    verdicts: tuple[Verdict, ...]
    folder: Path
    wrong: tuple[str, ...] = ()
    """A sentence for each implementation that was wrong, hung, crashed or failed, the gravest first."""

    def of(self, subject: str, baseline: str = "") -> tuple[Verdict, ...]:
        """The verdicts on a kernel, against one baseline or other kernel, or all. Raises `KeyError` for a name that the
        run does not have, so that an empty answer always means that there was nothing to compare."""
        names = {one.implementation for one in self.timings}
        for name in (subject, baseline):
            if name and name not in names:
                raise KeyError(f"{name}: the run has {', '.join(sorted(names))}")
        return tuple(one for one in self.verdicts if one.subject == subject and baseline in ("", one.baseline))

    def skipped(self, implementation: str = "") -> dict[str, str]:
        """Why an implementation was not timed, by case; with none named, those of all, by `case implementation`."""
        return {
            one.case_id if implementation else f"{one.case_id} {one.implementation}": one.skipped
            for one in self.timings
            if one.skipped and implementation in ("", one.implementation)
        }

    def rows(self) -> list[dict[str, Any]]:
        """A mapping for each timing, its axes among the keys."""
        made = []
        for one in self.timings:
            row = asdict(one)
            axes = row.pop("axes")
            made.append({**row, **{name: value for name, value in axes.items() if name not in row}})
        return made

    def to_pandas(self) -> Any:
        """The timings as a pandas DataFrame. Raises `ImportError` without pandas."""
        return frame_library("pandas").DataFrame(self.rows())

    def to_polars(self) -> Any:
        """The timings as a polars DataFrame. Raises `ImportError` without polars."""
        return frame_library("polars").DataFrame(self.rows(), infer_schema_length=None)

    def _repr_html_(self) -> str:
        """In a notebook: the headlines, and where the report is."""
        items = "".join(f"<li><strong>{escape_html(one)}</strong></li>" for one in self.wrong)
        items += "".join(f"<li>{escape_html(one)}</li>" for one in (*self.headlines, *self.warnings))
        about = f"{escape_html(self.run_id)} on {escape_html(self.device)}: {escape_html(self.status)}"
        return f"<p>{about}</p><ul>{items}</ul>"


def escape_html(text: str) -> str:
    """Text that a page shows as it is."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def frame_library(name: str) -> Any:
    """A library of data frames. Raises `ImportError` with what installs it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as exc:
        raise ImportError(f"{name} is not installed: pip install {name}, or use Results.rows()") from exc


def results_in(folder: str | Path) -> Results:
    """The results in a folder that `bench fetch` made, or in a CSV of measurements. Raises `BenchError`."""
    path = Path(folder)
    return of_report(read_report(path), path if path.is_dir() else path.parent, "")


def of_report(report: Report, folder: Path, status: str) -> Results:
    """A report as typed data."""
    timings, verdicts = [], []
    for case in report.study.cases:
        where = (case.setting.regime, case.setting.cache)
        for timing in case.timings:
            median = timing.median_us
            timings.append(
                Timing(
                    case.case_id,
                    typed_axes(case.axes),
                    *where,
                    timing.implementation,
                    timing.backend,
                    timing.count,
                    median.mid,
                    median.low,
                    median.high,
                    timing.max_abs_error,
                    timing.skipped,
                    timing.joules,
                )
            )
        beside = (*case.beside, *(one.inverse for one in case.beside))
        verdicts += [_verdict(one) for one in (*case.contrasts, *beside)]
    cost = report.cost_usd
    return Results(
        run_id=report.study.run_id,
        device=report.study.device,
        status=status,
        cost_usd=None if cost is None or math.isnan(cost) else dollars(cost),
        headlines=tuple(report.headlines()),
        warnings=tuple(report.warnings()),
        timings=tuple(timings),
        verdicts=tuple(verdicts),
        folder=folder,
        wrong=wrong_first(report.study),
    )


def typed_axes(axes: Mapping[str, str]) -> dict[str, int | float | bool | str]:
    """The axes of a case by the names and with the values that a workload gives them: `{"n": 1024, "causal": True}`."""
    return {name.removeprefix("axis:"): parse_axis_value(value) for name, value in axes.items()}


def parse_axis_value(text: str) -> int | float | bool | str:
    """The value that a cell stands for. A number that would be written in another way stays text, as `007` does."""
    if text in ("true", "false"):
        return text == "true"
    kinds: tuple[Callable[[str], int | float], ...] = (int, float)
    for kind in kinds:
        try:
            value = kind(text)
        except ValueError:
            continue
        if str(value) == text:
            return value
    return text


def _verdict(one: Contrast) -> Verdict:
    ratio, setting = one.ratio, one.setting
    return Verdict(
        one.case_id, setting.regime, setting.cache, one.subject, one.baseline, one.verdict.value,
        ratio.mid, ratio.low, ratio.high, one.doubt,
    )  # fmt: skip


def with_files(report: Report, folder: Path, status: str) -> Results:
    """The results, once the report's files are written beside them."""
    if report.study.cases:
        write_files(report, folder)
    return of_report(report, folder, status)

"""The page that compares devices, from the newest runs on each."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.analysis.axes import number
from orchestrator.analysis.devices import Column, Time, side_by_side
from orchestrator.core.text import count
from orchestrator.report.devices import SIMULATED, sections
from orchestrator.report.page import Page, Part, Section, Text, written
from orchestrator.report.site.digest import CaseDigest, Digest, newest_first, unpacked
from orchestrator.report.site.links import GPUS, nav


def page(digests: Sequence[Digest]) -> str:
    measured = [one for one in digests if one.device and one.cases]
    columns = [column(device, [one for one in measured if one.device == device]) for device in devices(measured)]
    found = side_by_side(columns)
    said: list[Part] = [
        Text(
            f"{count(len(columns), 'device')}. Of each, the newest run that timed a case and was not disturbed; what "
            "was spent is the sum over all its runs.",
            "soft",
        )
    ]
    made = sections(found)
    if not columns:
        made = [Section("Devices", [Text("No run has measured a case yet.")])]
    elif len(columns) == 1:
        said.append(Text("A comparison needs a second device.", "soft"))
    if any(one.simulated for one in measured):
        said.append(Text(SIMULATED, "warn"))
    return written(Page("GPUs", "Devices side by side", said, made, nav(GPUS)))


def devices(digests: Sequence[Digest]) -> list[str]:
    return sorted({one.device for one in digests})


def column(device: str, digests: Sequence[Digest]) -> Column:
    """The column of a device. Each time comes from the newest undisturbed run that has it, or else from the newest
    run."""
    runs = newest_first(digests)
    times: dict[tuple[str, str, str, str], Time] = {}
    calm = [one for one in runs if not one.busy]
    for digest in (*calm, *(one for one in runs if one.busy)):
        for case in digest.cases:
            time = _time(digest, case)
            if time is not None:
                times.setdefault((case.case_id, case.regime, case.cache, time.implementation), time)
    return Column(
        name=device,
        times=tuple(times.values()),
        runs=tuple(one.run_id for one in runs),
        cost_usd=sum(number(one.line.get("cost_usd")) or 0.0 for one in runs),
        usd_per_hour=next((one.usd_per_hour for one in runs if one.usd_per_hour), None),
        answers=sum(one.answers for one in runs),
        simulated=all(one.simulated for one in runs),
        doubt="" if calm else runs[0].busy,
    )


def _time(digest: Digest, case: CaseDigest) -> Time | None:
    own = case.times.get(digest.subject)
    if own is None:
        return None
    rate = case.rates.get(digest.subject, float("nan"))
    return Time(case.case_id, case.setting, digest.subject, unpacked(own), case.floor, rate)

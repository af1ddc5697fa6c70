"""One run with what is known of how it was made, and the sentences that sum it up."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from orchestrator.analysis.case import ControlPair
from orchestrator.analysis.samples import Group
from orchestrator.analysis.second_clock import Told, Watched, describe_agreement, describe_watched, measure_agreement
from orchestrator.analysis.study import Study, false_verdicts
from orchestrator.analysis.summaries import THRESHOLDS, Energy, FastP, Score, fast_p, find_energies, scores_of
from orchestrator.analysis.verdicts import Verdict
from orchestrator.core import bundled
from orchestrator.core.bundled import DEFAULT
from orchestrator.core.config.load import repeat_config
from orchestrator.core.naming import Mode
from orchestrator.core.run.status import PARTS, describe_parts, format_span
from orchestrator.core.text import clean_line, count
from orchestrator.report.text import format_digits, format_energy, format_estimate, format_percent, of_cases

# How the time of a run's machines was spent, as its manifest records it.


@dataclass(frozen=True, slots=True)
class Minutes:
    """Seconds of machines, of measuring, and of the cold start by its parts."""

    paid_s: float
    measuring_s: float
    parts: Mapping[str, float]

    @classmethod
    def read(cls, found: Any) -> Minutes | None:
        """The minutes in a manifest; None where they are missing or impossible."""
        if not isinstance(found, Mapping):
            return None
        paid, measuring = _seconds(found.get("paid_s")), _seconds(found.get("measuring_s"))
        parts = found.get("cold_start_parts_s")
        if not isinstance(parts, Mapping) or not 0 < measuring <= paid:
            return None
        return cls(paid, measuring, {part: taken for part in PARTS if (taken := _seconds(parts.get(part)))})

    @property
    def share(self) -> float:
        """The share of the machines' time that was spent on measuring, 0 to 1."""
        return self.measuring_s / self.paid_s

    @property
    def text(self) -> str:
        sentence = f"Measuring took {self.share:.0%} of {format_span(self.paid_s)} of machine time"
        if not self.parts:
            return f"{sentence}."
        start = f"{format_span(sum(self.parts.values()))} after the request ({describe_parts(dict(self.parts))})"
        return f"{sentence}; the first case began {start}."

    def document(self) -> dict[str, Any]:
        return {
            "paid_s": self.paid_s,
            "measuring_s": self.measuring_s,
            "measuring_share": round(self.share, 4),
            "cold_start_parts_s": dict(self.parts),
        }


def _seconds(value: Any) -> float:
    """`value` as a number of seconds; 0 if it is none."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value > 0
    return float(value) if number else 0.0


MOST_STOLEN: Final = 1.0
"""If more than this share of the host's time, in per cent, went to others, the report warns."""
REPEAT: Final = "repeat.yaml"
"""The name of the file beside the results that has the run's grid."""
MOST_FALSE: Final = 0.05
MOST_NOISE: Final = 0.05
NOT_GIVEN: Final = "Energy is not known: it is read from NVML's counter, on a GPU, in the sustained regime."


@dataclass(frozen=True, slots=True)
class Report:
    """One run. `environment`, `build`, `manifest` and `spec` are the files of those names; empty where there is
    none."""

    study: Study
    environment: Mapping[str, Any] = field(default_factory=dict)
    build: Mapping[str, Any] = field(default_factory=dict)
    manifest: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    spec: Mapping[str, Any] = field(default_factory=dict)
    clock: tuple[Told, ...] = ()
    """CUPTI's times of some cases, in old runs in which it did not watch the launches that are timed."""
    watched: tuple[Watched, ...] = ()
    """CUPTI's times of launches that our timers timed."""

    @property
    def title(self) -> str:
        named = self.workload
        return f"{named if self.named else named.capitalize()} on {self.device}"

    @property
    def device(self) -> str:
        """The device that the rows name; without rows, the device that the machine reported."""
        return self.study.device or str(self.environment.get("device") or "") or "an unknown device"

    @property
    def workload(self) -> str:
        """The workload by the name in the spec. Without a name there, the tool's own workloads are recognised by the
        axes of their cases."""
        named = self.named
        is_own_workload = bool(self.study.cases) and bundled.is_of(case.axes for case in self.study.cases)
        return str(named) if named else bundled.WORKLOAD if is_own_workload else "kernels"

    @property
    def named(self) -> str:
        """The name of the user's own workload; empty for the tool's own workloads and where it is not recorded."""
        named = self.manifest.get("workload") or self.spec.get("workload")
        if isinstance(named, Mapping):
            named = named.get("name") or str(named.get("path") or "").rpartition("/")[2].removesuffix(".py")
        return clean_line(str(named or ""), 100)

    @property
    def cost_usd(self) -> float | None:
        cost = self.manifest.get("cost_usd")
        try:
            return None if cost is None else float(cost)
        except (TypeError, ValueError):
            return None

    @property
    def usd_per_answer(self) -> float | None:
        """The cost of each comparison with a conclusion; None where it is not known."""
        return self.cost_usd / self.study.answers if self.cost_usd is not None and self.study.answers else None

    def device_facts(self) -> tuple[str, ...]:
        """Facts about the device that a reader of a kernel's time must know."""
        environment = self.environment
        units = (
            ("driver", "driver {}"), ("cuda", "CUDA {}"), ("cudnn", "cuDNN {}"), ("torch", "torch {}"),
            ("sm_clock_max_mhz", "at most {} MHz"), ("power_limit_w", "{} W"),
        )  # fmt: skip
        facts = [words.format(environment[key]) for key, words in units if environment.get(key)]
        if environment.get("device_kind") == "cpu":
            facts = [words for words in facts if words.startswith("torch")]  # the CUDA of its torch ran nothing
            cpu, threads = environment.get("cpu"), environment.get("threads")
            facts += [str(cpu)] if cpu else []
            facts += [count(threads, "thread")] if isinstance(threads, int) and threads else []
        return tuple(dict.fromkeys((self.device, *facts)))

    def run_facts(self) -> tuple[str, ...]:
        """Facts about the run: when it ran, on which machine, with which code."""
        vms = self.manifest.get("vms")
        last = vms[-1] if isinstance(vms, list) and vms and isinstance(vms[-1], Mapping) else {}
        commit = str(self.environment.get("git_commit") or "")[:10]
        payload = str(self.environment.get("payload_sha256") or self.manifest.get("payload_sha256") or "")[:12]
        began = str(self.manifest.get("started_at") or self.environment.get("recorded_at") or "")[:16].replace("T", " ")
        where = " in ".join(str(last[key]) for key in ("machine_type", "zone") if last.get(key))
        if self.simulated:
            where = "practice on this machine"
        dirty = "+" if self.environment.get("git_dirty") else ""
        code = (f"commit {commit}{dirty}" if commit else "", f"payload {payload}" if payload else "")
        return tuple(part for part in (self.study.run_id, began, where, *code) if part)

    def again(self) -> dict[str, Any]:
        """The configuration that measures the same again, for a folder that was not fetched; empty where the spec is
        not complete. A fetched run has such a configuration already."""
        return {} if self.manifest else repeat_config(self.spec, str(self.environment.get("compute_capability") or ""))

    def command(self) -> str:
        """The command that measures the same again; empty where the run's grid is not known."""
        if not self.manifest.get("repeat") and not self.again():
            return ""
        return f"bench launch {REPEAT}{' --host local' if self.own_machine else ''}"

    @property
    def own_machine(self) -> bool:
        """Whether it was measured on a machine of the user. A folder without a manifest was measured where it is."""
        return not self.manifest or self.manifest.get("mode") == Mode.HOST

    @property
    def simulated(self) -> bool:
        """Whether its dollars are simulated: the embedded cloud has prices, and nobody pays them."""
        return self.manifest.get("mode") == "embedded"

    @property
    def planned(self) -> int:
        """The number of cases that the run should measure; where it is not recorded, the number of measured cases."""
        planned = self.manifest.get("cases_total")
        measure = self.spec.get("measure")
        if not isinstance(planned, int) and isinstance(measure, Mapping):
            shapes, dtypes = measure.get("shapes"), measure.get("dtypes")
            planned = len(shapes) * len(dtypes) if isinstance(shapes, list) and isinstance(dtypes, list) else 0
        planned = planned if isinstance(planned, int) else 0
        return max(planned, len(self.study.case_ids))

    @property
    def cases(self) -> str:
        """`36 of 40 cases, 4 not measured`; `12 cases` where nothing is missing."""
        return of_cases(len(self.study.case_ids), self.planned)

    def warnings(self) -> tuple[str, ...]:
        """Warnings that a reader must know before reading any number."""
        return (*self.incomplete(), *self.notes_after())

    def incomplete(self) -> tuple[str, ...]:
        """Warnings that the results are not all there, or not of the machine that is named."""
        partial: tuple[str, ...] = ()
        if self.planned > len(self.study.case_ids):
            partial = (f"The run is not complete: {self.cases}.",)
        elif not self.manifest.get("complete", True):
            state = str(self.manifest.get("state") or "not over").replace("_", " ")
            partial = (f"The run is not complete: it was {state} when it was fetched.",)
        named = self.environment.get("device")
        if named and self.study.device and named != self.study.device:
            notice = (
                f"The rows were measured on {self.study.device}, but environment.json names another device: {named}."
            )
            partial = (*partial, notice)
        return partial

    def notes_after(self) -> tuple[str, ...]:
        """Warnings about the quality of the measurements and of the files."""
        return (
            *self.busy(),
            *self.unsteady(),
            *self.notes,
            *self.study.notes,
            *(f"Left out: {fault}." for fault in self.study.faults),
        )

    def busy(self) -> tuple[str, ...]:
        """A sentence for each sign that the host did other work while it measured."""
        groups = [t.group for case in self.study.cases for t in case.timings if t.timed]
        signs = []
        load, processors = _middle(groups, "load_1m"), self.environment.get("cpu_count")
        if isinstance(processors, int) and load > processors + 1:
            signs.append(
                f"The host was busy with other work: a load of {load:.1f} on {count(processors, 'processor')}."
            )
        stolen = _mean(groups, "steal_percent")
        if stolen > MOST_STOLEN:
            signs.append(f"The host gave {stolen:.1f} % of the processors' time to other machines.")
        return tuple(signs)

    def unsteady(self) -> tuple[str, ...]:
        """A sentence for each sign that implementations differed from themselves by more than chance allows, or by too
        much for useful results."""
        signs, controls = [], self.study.controls
        wrong = false_verdicts(controls)
        if wrong > 1 and wrong > MOST_FALSE * len(controls):
            signs.append(
                f"Implementations differed from themselves: the A/A control would have been called different in "
                f"{wrong} of {of_controls(controls)}."
            )
        floors = sorted(one.noise.floor for one in self.study.contrasts if one.noise is not None)
        if floors and floors[len(floors) // 2] > MOST_NOISE:
            signs.append(
                f"The noise is large: differences below {format_percent(floors[len(floors) // 2])} (median over "
                "comparisons) "
                "cannot be distinguished from it."
            )
        return tuple(signs)

    def headlines(self) -> tuple[str, ...]:
        """The result, one sentence for each setting."""
        return tuple(words for part in self.study.parts() for words in headlines_of(part, self.prefix(part)))

    def sentences(self) -> tuple[str, ...]:
        """Further results in sentences, setting by setting, and the cost."""
        sentences = [
            words for part in self.study.parts() for words in sentences_of(part, self.planned, self.prefix(part))
        ]
        sentences += [self.prefix(self.study.only(one.setting)) + fast_p_words(one) for one in fast_p(self.study)]
        sentences += [self.prefix(self.study.only(one.setting)) + score_words(one) for one in scores_of(self.study)]
        return (
            *sentences,
            *(words for words in (self.second_clock(), self.money(), self.energy(), self.time()) if words),
        )

    def second_clock(self) -> str:
        """How far our times are from CUPTI's, in one sentence; empty where there are none of CUPTI's."""
        if self.watched:
            return describe_watched([one for one in self.watched if one.case_id in self.study.case_ids])
        clock_agreement = measure_agreement(self.study, self.clock)
        return describe_agreement(clock_agreement) if clock_agreement is not None else ""

    def money(self) -> str:
        """The cost of the run and of each answer, in words; empty where nobody is paid."""
        if not self.cost_usd:
            return ""
        answers = count(self.study.answers, "answer")
        each = f": ${self.usd_per_answer:.6f} for each of {answers}" if self.usd_per_answer is not None else ""
        if self.simulated:
            return "Practice: nothing was rented, and no dollar was spent."
        return f"The run cost ${self.cost_usd:.4f}{each}."

    def energy(self) -> str:
        """The energy of calls in joules, in words, or that it is not given; empty where nothing was timed."""
        if not self.study.measurements:
            return ""
        return " ".join(map(energy_words, find_energies(self.study))) or NOT_GIVEN

    @property
    def minutes(self) -> Minutes | None:
        """How the time of its machines was spent; None where the manifest does not say."""
        return Minutes.read(self.manifest.get("time"))

    def time(self) -> str:
        """How much of the machines' time was spent on measuring, and what came before the first case, in words."""
        return self.minutes.text if self.minutes is not None else ""

    def prefix(self, part: Study) -> str:
        """The beginning of a sentence that names the setting, if the run has several; else empty."""
        return f"{part.settings[0].name}: " if len(self.study.settings) > 1 else ""


def energy_words(one: Energy) -> str:
    """Joules a call in one setting, in a sentence."""
    each = ", ".join(f"{name} {format_energy(joules)}" for name, joules in one.joules.items())
    over = f" (geometric mean over {count(one.cases, 'case')})" if one.cases > 1 else ""
    return f"Energy of a call, {one.setting.name or 'all'}: {each}{over}."


def fast_p_words(one: FastP) -> str:
    """KernelBench's measure of a kernel, in a sentence."""
    shares = [f"{format_percent(one.share(at), places=0)} at p = {p:g}" for at, p in enumerate(THRESHOLDS)]
    return (
        f"fast_p of {one.implementation}, the share of {count(one.problems, 'problem')} that it solves correctly and "
        f"more than p times as fast as eager: {', '.join(shares)}."
    )


def score_words(one: Score) -> str:
    """The scores of a GPU MODE problem in one setting, in a sentence."""
    over = f"over {count(one.cases, 'case')}" if one.ranking != "last" else "the last case"
    scores = ", ".join(f"{name} {format_digits(us)} µs" for name, us in one.us.items())
    none = f" No score: {', '.join(one.unranked)}, not timed in every case that counts." if one.unranked else ""
    return f"Score (ranking_by: {one.ranking}, {over}): {scores or 'none'}.{none}"


def headlines_of(part: Study, prefix: str = "") -> tuple[str, ...]:
    """The result of one setting: a sentence for each kernel against the fastest baseline of each case, and one for the
    order of the kernels."""
    sentences = []
    for kernel in part.kernels:
        best = [one for case in part.cases if (one := case.against_fastest(kernel)) is not None]
        if best:
            verdict_counts = Counter(one.verdict for one in best)
            verdicts = ", ".join(f"{word} in {verdict_counts[word]}" for word in Verdict if verdict_counts[word])
            of_all = count(len(best), "case")
            sentences.append(f"{prefix}{kernel} against the fastest baseline of each case: {verdicts} of {of_all}.")
    return (*sentences, *(f"{prefix}{words}" for words in [ranks_in_words(part)] if words))


def ranks_in_words(part: Study) -> str:
    """Which of the kernels is the fastest, in one sentence for one setting; empty for a single kernel."""
    places: dict[str, Counter[str]] = {}
    for case in part.cases:
        for rank in case.ranks:
            places.setdefault(rank.implementation, Counter())[rank.text] += 1
    several = len([case for case in part.cases if case.ranks]) > 1
    kernels = [
        f"{name} {', '.join(f'{place} in {cases}' if several else place for place, cases in sorted(found.items()))}"
        for name, found in places.items()
    ]
    return f"Places of the kernels (1 is the fastest): {'; '.join(kernels)}." if kernels else ""


def sentences_of(part: Study, total: int, prefix: str = "") -> tuple[str, ...]:
    """Further results of one setting in sentences, of `total` planned cases. A mean is given only if all its cases have
    a verdict."""
    results = []
    for baseline in [DEFAULT] if DEFAULT in part.baselines else part.baselines[:1]:
        mean = part.mean(baseline)
        if mean is not None and mean.decided == mean.cases > 1:
            over = of_cases(mean.cases, total, "compared")
            results.append(f"{prefix}Geometric mean against {baseline} over {over}: {format_estimate(mean.ratio)}.")
    controls = part.controls
    if controls:
        names = list(dict.fromkeys(one.implementation for one in controls))
        itself = " measured against itself" if len(names) == 1 else ", each measured against itself,"
        results.append(
            f"{prefix}A/A control: {' and '.join(names)}{itself} would have been called "
            f"different in {false_verdicts(controls)} of {of_controls(controls)}."
        )
    shifts = sorted(one.order_shift for one in part.contrasts if not math.isnan(one.order_shift))
    if shifts:
        middle = format_digits(shifts[len(shifts) // 2])
        results.append(f"{prefix}Running first instead of last changes the ratio by a factor of {middle} (median).")
    return tuple(results)


def of_controls(controls: Sequence[ControlPair]) -> str:
    """The number of controls in words. A case may have several, and each regime has its own."""
    one_each = len({one.case_id for one in controls}) == len(controls)
    return count(len(controls), "case" if one_each else "comparison")


def _known(groups: Sequence[Group], sensor: str) -> list[float]:
    return [float(np.nanmean(one.sensors[sensor])) for one in groups if not np.isnan(one.sensors[sensor]).all()]


def _middle(groups: Sequence[Group], sensor: str) -> float:
    return float(np.median(readings)) if (readings := _known(groups, sensor)) else math.nan


def _mean(groups: Sequence[Group], sensor: str) -> float:
    return float(np.mean(readings)) if (readings := _known(groups, sensor)) else math.nan

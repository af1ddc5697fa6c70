"""The page of one run: its report, how it went, and links to other pages about it."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from orchestrator.analysis.axes import parse_number
from orchestrator.analysis.samples import Reader
from orchestrator.analysis.study import study
from orchestrator.core import bundled
from orchestrator.core import text as foreign
from orchestrator.core.errors import BenchError
from orchestrator.core.naming import attempt_of
from orchestrator.core.results import case_file_fault
from orchestrator.core.run.diagnose import complete_remedy, remedy_for
from orchestrator.core.run.fold import OUTCOMES
from orchestrator.core.run.status import Material
from orchestrator.core.text import count, format_clock
from orchestrator.report import html
from orchestrator.report.page import Cell, Link, Links, Page, PageTable, Part, Section, Text, Word, write_page
from orchestrator.report.report import Report
from orchestrator.report.site.digest import Digest, digest_of
from orchestrator.report.site.index import case_page, relative_link, run_page, shown_state, site_nav, style_of
from orchestrator.report.text import UNKNOWN, case_labels


def digest_run(material: Material) -> tuple[Digest, str]:
    """The digest of a run, and its page. There is a page whatever its files hold; it says what cannot be read."""
    body, notes = _document(material.body, "its state")
    try:
        report = report_of(material, body, notes)
    except (BenchError, ValueError, ArithmeticError, LookupError, TypeError) as exc:
        # These are rows that no version of ours writes. One bad run must not stop the site.
        report, notes = None, (*notes, f"What it measured cannot be read: {foreign.clean_line(str(exc), 300)}.")
    problem = " ".join(part for part in (material.problem, *(notes if report is None else ())) if part)
    digest = digest_of(asdict(material.line), report, usd_per_hour(body), problem)
    return digest, write_run_page(digest, report, body)


def report_of(material: Material, body: Mapping[str, Any], notes: tuple[str, ...]) -> Report | None:
    """The report of the stored measurements; None where no case is stored."""
    line = material.line
    machines = {str(vm.get("name")) for vm in _objects(body, "vms")}
    environment, environment_notes = _document(material.environment, "environment.json")
    build, build_notes = _document(material.build, "build.json")
    reader, notes = Reader(), (*notes, *environment_notes, *build_notes)

    def ours(vm: str) -> bool:
        return vm in machines or attempt_of(line.run_id, vm) is not None

    for case, data in sorted(material.cases.items()):
        rows = [_line(one) for one in io.StringIO(data.decode("utf-8", "replace"), newline="")]
        if why := case_file_fault(rows, case, line.run_id, ours):
            notes = (*notes, f"Case {foreign.clean_name(case)} is left out: {why}.")
        else:
            reader.read(rows, case)
    if not material.cases:
        return None
    groups = reader.groups()
    manifest = {
        "cases_total": line.cases_total,
        "complete": line.phase in OUTCOMES and line.cases_done >= line.cases_total,
        "cost_usd": line.cost_usd,
        "gpu": line.gpu,
        "mode": line.mode,
        "image": body.get("image") or "",
        "started_at": line.created_at,
        "vms": [
            {key: str(vm.get(key) or "") for key in ("name", "zone", "machine_type")} for vm in _objects(body, "vms")
        ],
    }
    studied = study(groups, reader.told())
    if not bundled.is_of(case.axes for case in studied.cases):
        manifest["workload"] = line.config
    return Report(studied, environment, build, manifest, notes)


def _line(text: str) -> str:
    """A line of a CSV without characters that hide text; its line end stays as it is."""
    if text.isascii() and text[:-1].isprintable():
        return text
    body = text.rstrip("\r\n")
    return foreign.clean_line(body.replace("\0", ""), len(body) * 10 + 1) + text[len(body) :]


def _document(data: bytes, what: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    if not data:
        return {}, ()
    try:
        return foreign.parse_document(data), ()
    except ValueError as exc:
        return {}, (f"{what} cannot be read ({foreign.clean_line(str(exc), 200)}).",)


def _objects(body: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    objects = body.get(key)
    return [one for one in objects if isinstance(one, dict)] if isinstance(objects, list) else []


def usd_per_hour(body: Mapping[str, Any]) -> float | None:
    """The price of the run's last machine; None where it is not known."""
    prices = [
        price
        for vm in _objects(body, "vms")
        if (price := parse_number(vm.get("usd_per_hour"))) and vm.get("started_at")
    ]
    return prices[-1] if prices else None


def write_run_page(digest: Digest, report: Report | None, body: Mapping[str, Any]) -> str:
    """The whole file. `report` is None where nothing was measured."""
    path = run_page(digest.run_id)
    sections = list(_how_it_went(digest, body))
    if report is not None:
        cases = list(dict.fromkeys(one.case_id for one in digest.cases))
        names = case_labels(cases)
        links = [Link(names[case], relative_link(case_page(case), path)) for case in cases]
        if links:
            sections.insert(0, Section("Over time", [Text("Each case over all runs:", "soft"), Links("cases", links)]))
        return html.report_page(report, nav=site_nav(path), state=[*_state(digest)], more=sections)
    heading = f"Run {digest.run_id}"
    report_parts: list[Part] = [*_state(digest), Text("Nothing was measured.")]
    return write_page(Page(heading, heading, report_parts, sections, site_nav(path)))


def _state(digest: Digest) -> Iterator[Part]:
    line = digest.status
    price = "practice: nothing was rented" if digest.simulated else f"${digest.cost_usd:,.4f}"
    facts = (
        shown_state(digest),
        line.gpu,
        f"{line.cases_done} of {count(line.cases_total, 'case')}",
        format_clock(line.seconds),
        price,
    )
    yield Text(" · ".join(fact for fact in facts if fact), style_of(line.phase) or "soft")
    if line.detail and not digest.wrong:  # the report says what is wrong in its own first lines
        yield Text(line.detail, "" if line.phase == "succeeded" else "warn")
    if digest.problem:
        yield Text(digest.problem, "warn")


def _how_it_went(digest: Digest, body: Mapping[str, Any]) -> Iterator[Section]:
    parts: list[Part] = []
    for one in _objects(body, "diagnoses"):
        cause = str(one.get("cause") or "")
        cause_parts = [cause, str(one.get("detail") or ""), complete_remedy(remedy_for(cause), digest.run_id)]
        parts.append(Text(": ".join(part for part in cause_parts if part), "warn"))
    spans = [_span(one) for one in _objects(body, "phases")]
    if spans:
        parts.append(PageTable("Phases", ("machine", "phase", "began, UTC", "took", "exit code"), spans, left=(1, 2)))
    machines = [_machine(one) for one in _objects(body, "vms")]
    if machines and not digest.simulated:
        heads = ("machine", "zone", "type", "sold as", "$ an hour", "began, UTC", "ended as", "cost")
        parts.append(PageTable("Machines", heads, machines, left=(1, 2, 3, 5, 6), stack=True))
    heals = [Word(_short(one)) for one in _objects(body, "heals")]
    if heals:
        parts.append(PageTable("Healed", ("healed",), [[one] for one in heals], long=(0,)))
    if parts:
        yield Section("How it went", parts)


def _span(one: Mapping[str, Any]) -> list[Cell]:
    seconds, code = parse_number(one.get("seconds")), one.get("exit_code")
    took = format_clock(round(seconds)) if seconds is not None else "going on"
    return [str(one.get("attempt", "")), str(one.get("phase", "")), _moment(one.get("started_at")), took,
            UNKNOWN if code is None else str(code)]  # fmt: skip


def _machine(one: Mapping[str, Any]) -> list[Cell]:
    price, cost = parse_number(one.get("usd_per_hour")), parse_number(one.get("cost_usd"))
    return [
        str(one.get("attempt", "")), str(one.get("zone", "")), str(one.get("machine_type", "")),
        str(one.get("provisioning", "")), UNKNOWN if price is None else f"${price:.4f}",
        _moment(one.get("started_at")), str(one.get("how") or one.get("refused") or UNKNOWN),
        UNKNOWN if cost is None else f"${cost:.4f}",
    ]  # fmt: skip


def _moment(text: object) -> str:
    return str(text)[:19].replace("T", " ") if text else UNKNOWN


def _short(one: Mapping[str, Any]) -> str:
    return foreign.clean_line("; ".join(f"{key} {json.dumps(value)}" if not isinstance(value, str) else f"{key} {value}"
                                   for key, value in one.items() if value not in (None, "", [], {})), 400)  # fmt: skip

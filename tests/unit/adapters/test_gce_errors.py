"""What each refusal means for the other zones."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from typing import Any

import google.api_core.exceptions as api
import google.auth.exceptions as auth
import pytest
import requests
import urllib3.exceptions
from google.cloud import compute_v1
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.adapters.google import compute as convert
from orchestrator.adapters.google.compute_faults import QUOTA_CODES, RULES, ComputeFault, classify_fault
from orchestrator.adapters.google.errors import (
    brief_message,
    error_reasons,
    is_transient,
    translate_error,
    translate_google_errors,
)
from orchestrator.core.errors import BenchError, CredentialsMissing, ProviderError, Unavailable

STOCKOUT = {
    "code": "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
    "message": "The zone 'projects/p/zones/us-central1-b' does not have enough resources available to fulfill the "
    "request. '(resource type:compute)' (state:STOCKOUT).",
    "errorDetails": [
        {"help": {"links": [{"description": "Troubleshooting", "url": "https://cloud.google.com/compute/docs/"}]}},
        {
            "localizedMessage": {
                "locale": "en-US",
                "message": "A n1-standard-4 VM instance with 1 nvidia-tesla-t4 accelerator(s) is currently unavailable.",
            }
        },
        {
            "errorInfo": {
                "domain": "compute.googleapis.com",
                "reason": "resource_availability",
                "metadatas": {
                    "vmType": "n1-standard-4",
                    "attachment": "nvidia-tesla-t4:1",
                    "zone": "us-central1-b",
                    "zonesAvailable": "us-central1-a, us-central1-f",
                },
            }
        },
    ],
}


def operation(**fields: Any) -> compute_v1.Operation:
    return compute_v1.Operation.from_json(json.dumps({"name": "op", "status": "DONE", **fields}))


def test_a_stock_out_blocks_its_zone_and_recommends_others() -> None:
    (fault,) = convert.operation_faults(operation(httpErrorStatusCode=503, error={"errors": [STOCKOUT]}))
    answer = classify_fault(fault)
    assert (answer.code, answer.scope) == ("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", "zone")
    assert answer.zones_available == ("us-central1-a", "us-central1-f")
    assert "STOCKOUT" in answer.message
    assert "1 nvidia-tesla-t4" in answer.message


def test_an_operation_that_is_done_with_errors_has_failed_whatever_its_status_says() -> None:
    assert len(convert.operation_faults(operation(error={"errors": [STOCKOUT]}))) == 1
    assert len(convert.operation_faults(operation(httpErrorStatusCode=500, httpErrorMessage="INTERNAL"))) == 1
    assert convert.operation_faults(operation()) == ()
    assert convert.operation_faults(operation(warnings=[{"code": "UNREACHABLE"}])) == ()


@pytest.mark.parametrize(
    ("code", "message", "status", "scope"),
    [
        ("ZONE_RESOURCE_POOL_EXHAUSTED", "", 503, "zone"),
        ("REGION_RESOURCE_POOL_EXHAUSTED", "", 503, "region"),
        ("GPU_STOCKOUT", "", 503, "zone"),
        ("insufficientCapacity", "", 503, "zone"),
        ("UNSUPPORTED_OPERATION", "", 400, "zone"),
        ("RESOURCE_NOT_READY", "", 400, "zone"),
        ("RESOURCE_OPERATION_RATE_EXCEEDED", "", 403, "zone"),
        ("RESOURCE_NOT_FOUND", "", 404, "zone"),
        ("INTERNAL_ERROR", "", 500, "zone"),
        ("QUOTA_EXCEEDED", "Quota 'NVIDIA_L4_GPUS' exceeded.  Limit: 1.0 in region us-west1.", 403, "region"),
        ("quotaExceeded", "Quota 'PREEMPTIBLE_NVIDIA_T4_GPUS' exceeded. Limit: 0.0 in region us-east1.", 403, "region"),
        ("QUOTA_EXCEEDED", "Quota 'GPUS_ALL_REGIONS' exceeded.  Limit: 0.0 globally.", 403, "all"),
        ("QUOTA_EXCEEDED", "something new about quotas", 403, "all"),
        ("invalid", "The billing account is currently in the Free Tier where non-TPU accelerators are not available.",
         400, "all"),
        ("notFound", "The resource 'projects/p/zones/z/acceleratorTypes/nvidia-l4' was not found", 404, "zone"),
        ("invalid", "Invalid value for field 'resource.machineType': 'zones/z/machineTypes/g2-standard-4'.", 400, "zone"),
        ("notFound", "The resource 'projects/d/global/images/family/gone' was not found", 404, "all"),
        ("notFound", "The resource 'projects/p/global/networks/none' was not found", 404, "all"),
        ("forbidden", "Location us-x1 is not found or access is unauthorized.", 403, "zone"),
        ("invalid", "Invalid value for field 'resource.name'", 400, "all"),
        ("A_CODE_OF_NEXT_YEAR", "", 503, "zone"),
        ("A_CODE_OF_NEXT_YEAR", "", 400, "all"),
        ("A_CODE_OF_NEXT_YEAR", "", 0, "zone"),
    ],
)  # fmt: skip
def test_the_table_says_what_to_leave_alone(code: str, message: str, status: int, scope: str) -> None:
    assert classify_fault(ComputeFault(code, message, http_status=status)).scope == scope


@pytest.mark.parametrize(
    ("metric", "dimensions", "scope", "asked_for"),
    [
        ("compute.googleapis.com/gpus_all_regions", {}, "all", "GPUS_ALL_REGIONS"),
        ("compute.googleapis.com/nvidia_l4_gpus", {"region": "us-west1"}, "region", "NVIDIA_L4_GPUS in us-west1"),
        ("compute.googleapis.com/gpus_all_regions", {"region": "us-west1"}, "all", "GPUS_ALL_REGIONS"),
    ],
)
def test_a_quota_says_what_to_ask_for(metric: str, dimensions: dict[str, str], scope: str, asked_for: str) -> None:
    details = [{"quotaInfo": {"metricName": metric, "dimensions": dimensions, "limit": 1.0}}]
    error = {"code": "QUOTA_EXCEEDED", "message": "Limit: 1.0.", "errorDetails": details}
    (fault,) = convert.operation_faults(operation(httpErrorStatusCode=403, error={"errors": [error]}))
    answer = classify_fault(fault)
    assert answer.scope == scope
    assert f"ask for more of {asked_for} (the limit is 1)" in answer.hint


def test_an_exhausted_free_tier_names_the_remedy() -> None:
    answer = classify_fault(ComputeFault("invalid", "billing account is currently in the free tier", http_status=400))
    assert "upgrade" in answer.hint


@given(code=st.text(max_size=30), message=st.text(max_size=60), status=st.integers(0, 599))
def test_every_fault_has_a_scope(code: str, message: str, status: int) -> None:
    assert classify_fault(ComputeFault(code, message, http_status=status)).scope in ("zone", "region", "all")


def test_no_code_is_in_the_table_under_two_scopes_without_a_message_between_them() -> None:
    scopes: dict[str, set[str]] = {}
    for rule in RULES:
        for code in rule.codes if not (rule.says or rule.pattern) else ():
            scopes.setdefault(code, set()).add(rule.scope)
    assert all(len(found) == 1 for found in scopes.values())
    assert not QUOTA_CODES & set(scopes)


@pytest.mark.parametrize(
    ("message", "scope", "hint"),
    [
        ("[pd-standard, g2-standard-4] features are not compatible for creating instance.", "all", "disk_type"),
        (
            "Constraint constraints/compute.vmExternalIpAccess violated for project 1.",
            "all",
            "machine.external_ip=false",
        ),
        (
            "Constraint constraints/compute.requireShieldedVm violated for project 1.",
            "all",
            "policy of the organisation",
        ),
        (
            "'us-east1-b' violates constraint constraints/gcp.resourceLocations",
            "region",
            "set regions to some that it allows",
        ),
    ],
)
def test_what_no_other_machine_of_the_kind_would_mend_is_no_stock_out(message: str, scope: str, hint: str) -> None:
    answer = classify_fault(ComputeFault("UNSUPPORTED_OPERATION", message, http_status=400))
    assert (answer.scope, answer.stock_out) == (scope, False)
    assert hint in answer.hint


def test_a_machine_that_was_taken_back_while_it_was_made_is_still_a_stock_out() -> None:
    answer = classify_fault(ComputeFault("UNSUPPORTED_OPERATION", "Instance was preempted.", http_status=400))
    assert (answer.scope, answer.stock_out) == ("zone", True)


# The exceptions that no wire test reaches easily: those of tokens, of the libraries' own retries, of broken bodies.


@pytest.mark.parametrize(
    ("exc", "error", "transient"),
    [
        (auth.RefreshError("Reauthentication is needed"), CredentialsMissing, False),
        (auth.RefreshError("busy", retryable=True), Unavailable, True),
        (auth.TransportError("oauth2.googleapis.com: timed out"), Unavailable, True),
        (auth.DefaultCredentialsError("none"), CredentialsMissing, False),
        (api.RetryError("Timeout of 10.0s exceeded", cause=api.ServiceUnavailable("x")), Unavailable, False),
        (api.RetryError("Timeout of 10.0s exceeded", cause=ValueError("x")), Unavailable, False),
        (requests.Timeout("read timed out"), Unavailable, True),
        (requests.exceptions.ChunkedEncodingError("cut"), Unavailable, True),
        (urllib3.exceptions.ProtocolError("cut"), Unavailable, True),
        (http.client.IncompleteRead(b""), Unavailable, True),
        (ConnectionResetError("reset"), Unavailable, True),
        (requests.exceptions.InvalidURL("no host"), ProviderError, False),
        (api.BadRequest("invalid"), ProviderError, False),
        (api.from_http_status(408, "slow"), Unavailable, True),
    ],
)
def test_each_foreign_exception_has_a_word_of_ours(exc: Exception, error: type[BenchError], transient: bool) -> None:
    assert is_transient(exc) is transient
    ours = translate_error(exc, "do it")
    assert type(ours) is error
    assert str(ours).startswith("cannot do it")
    assert ours.hint


def test_the_foreign_exception_is_kept_as_the_cause() -> None:
    cause = api.ServiceUnavailable("later")
    with pytest.raises(Unavailable) as raised, translate_google_errors("do it"):
        raise cause
    assert raised.value.__cause__ is cause


def test_a_mistake_of_our_own_is_not_dressed_up_as_the_clouds() -> None:
    with pytest.raises(ZeroDivisionError), translate_google_errors("do it"):
        raise ZeroDivisionError


def test_reasons_are_found_where_the_library_left_them() -> None:
    assert error_reasons(api.Forbidden("x", errors=[{"reason": "forbidden"}, "odd"])) == {"forbidden"}
    assert error_reasons(api.Forbidden("x")) == frozenset()


@pytest.mark.parametrize(
    ("exc", "text"),
    [
        (api.Forbidden("GET http://h/b/o?alt=media: no access\nsecond line"), "no access"),
        (api.Forbidden(""), "Forbidden"),
        (
            requests.ConnectionError("x", request=requests.Request("GET", "http://h:1/p").prepare()),
            "h:1 does not answer",
        ),
        (ValueError("x" * 1000), "x" * 300),
    ],
)
def test_messages_are_cut_to_what_a_person_reads(exc: Exception, text: str) -> None:
    assert brief_message(exc) == text


def test_a_python_that_grows_old_is_told_to_nobody_in_the_midst_of_a_command() -> None:
    """From a date on, Google's libraries warn whoever imports them: every test would have failed on that day."""
    code = (
        "import datetime, orchestrator.adapters, google.api_core as core\n"
        "core.check_python_version('any', datetime.date(2045, 1, 1))\n"
    )
    ran = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")

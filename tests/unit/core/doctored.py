"""A project's answers and what a check makes of them."""

from __future__ import annotations

from typing import Any

from orchestrator.core.doctor.verdicts import CheckVerdict, Subject
from tests.support.conversations import lead
from tests.support.remedies import wrong_with

EMAIL = "bench-vm@proj-1.iam.gserviceaccount.com"
SUBJECT = Subject("proj-1", "my-bench", service_account=EMAIL, who="user:ada@example.com")


def verdict(check: Any, replies: Any, subject: Subject = SUBJECT) -> Any:
    """What a check finds, of which every remedy is a whole command."""
    found = lead(check, subject, reply=replies).result
    assert not isinstance(found, CheckVerdict) or not wrong_with(found.remedy)
    return found

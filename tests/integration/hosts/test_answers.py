"""A host's words about itself are data: whatever answers there, a launch and the doctor go on, or say what is odd."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.errors import HostUnfit
from orchestrator.core.host_answers import validate_answer
from orchestrator.core.hosts import HostNeeds, first_lack, gpu_for, host_fingerprint, lacks_packages
from tests.unit.core.test_hosts import CARD

NEEDS = HostNeeds(cuda=True, compiler=True, min_free_gb=4)
PROBE: dict[str, Any] = {
    "platform": "linux", "python": "3.11.7", "executable": "/usr/bin/python3", "os": "Debian", "machine": "x86_64",
    "cpu": "a processor", "cache": "/c", "free_gb": 100.0, "compiler": "g++ 12", "missing": [], "busy": "",
    "gpus": [CARD], "no_gpu": "",
}  # fmt: skip
PACKAGES: dict[str, Any] = {
    "torch": "2.13.0", "numpy": "2", "cuda": "13.0", "usable": True, "error": "", "compiles": "", "pythons": [],
}  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def judged(said: dict[str, Any], look: str, changed: str) -> dict[str, Any] | None:
    """The look, or None where it was called odd, and for the key that was changed."""
    try:
        return validate_answer(said, look)
    except HostUnfit as exc:
        if changed not in str(exc):
            raise
        return None


def test_what_an_honest_host_says_is_taken_as_it_is() -> None:
    assert validate_answer(PROBE, "probe") == PROBE
    assert validate_answer(PACKAGES, "packages") == PACKAGES


@given(key=st.sampled_from(sorted(PROBE)), value=JSON, gone=st.booleans())
def test_a_look_at_a_host_is_judged_or_called_odd_whatever_it_says(key: str, value: object, gone: bool) -> None:
    said = {name: one for name, one in (PROBE | {key: value}).items() if not (gone and name == key)}
    probe = judged(said, "probe", key)
    if probe is None:
        return
    first_lack(probe, NEEDS, "box")
    host_fingerprint(probe)
    assert gpu_for(probe)


@given(key=st.sampled_from(sorted(PACKAGES)), value=JSON, gone=st.booleans())
def test_what_a_validation_says_is_judged_or_called_odd_whatever_it_is(key: str, value: object, gone: bool) -> None:
    said = {name: one for name, one in (PACKAGES | {key: value}).items() if not (gone and name == key)}
    found = judged(said, "packages", key)
    if found is None:
        return
    lacks_packages(found, NEEDS, "box", "python3", "2.13.0")


@pytest.mark.parametrize("answer", [None, [], "yes", 3, {}])
def test_what_is_no_look_at_all_is_called_odd(answer: object) -> None:
    with pytest.raises(HostUnfit, match="that bench does not know"):
        validate_answer(answer, "probe")

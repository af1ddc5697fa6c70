"""Named baselines as data: one for each device, never back by accident, and whole through storage."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.core.baselines import (
    Baseline,
    BaselinesUnreadable,
    Older,
    checked_name,
    device_key,
    dump_baselines,
    parse_baselines,
    place_baseline,
    plain_entries,
    remove_devices,
)
from orchestrator.core.errors import ConfigError

FINGERPRINT: dict[str, Any] = {"driver": "580", "ecc": True, "regimes": ("burst",), "mig": None, "cuda": 13.0}
L4 = Baseline("20261121-040506-l4-7f3a", "NVIDIA L4", "c0ffee", False, FINGERPRINT, "2026-11-21T05:00:00Z", "ada")
T4 = replace(L4, run_id="20261121-040000-t4-0000", device="Tesla T4", git_commit="", git_dirty=None)


def test_a_device_has_one_baseline_under_a_name_and_another_device_another() -> None:
    there = place_baseline({}, L4)
    assert isinstance(there, dict)
    both = place_baseline(there, T4)
    assert isinstance(both, dict)
    assert {key: one.run_id for key, one in both.items()} == {"nvidia-l4": L4.run_id, "tesla-t4": T4.run_id}
    newer = replace(L4, run_id="20261122-000000-l4-0001")
    again = place_baseline(both, newer)
    assert isinstance(again, dict)
    assert (again["nvidia-l4"], again["tesla-t4"]) == (newer, T4)
    assert remove_devices(again, frozenset({"nvidia-l4"})) == {"tesla-t4": T4}


def test_an_older_run_takes_no_newer_ones_place_unless_it_is_meant() -> None:
    older = replace(L4, run_id="20261120-000000-l4-ffff")
    there = {"nvidia-l4": L4}
    assert place_baseline(there, older) == Older(L4)
    assert place_baseline(there, older, back=True) == {"nvidia-l4": older}
    assert place_baseline(there, L4) == there


def test_what_is_stored_reads_back_without_what_is_no_plain_value() -> None:
    data = dump_baselines("main", {"tesla-t4": T4, "nvidia-l4": L4})
    assert json.loads(data)["schema"] == 1
    assert list(json.loads(data)["devices"]) == ["nvidia-l4", "tesla-t4"]
    known = {"cuda": 13.0, "driver": "580", "ecc": True}
    assert plain_entries(FINGERPRINT) == known
    assert parse_baselines("main", data) == {
        "nvidia-l4": replace(L4, fingerprint=known),
        "tesla-t4": replace(T4, fingerprint=known),
    }


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b'{"devices": []}', b'{"devices": {"l4": {}}}', b'{"devices": {"l4": 1}}']
)
def test_what_is_no_baseline_says_so_and_how_to_go_on(data: bytes) -> None:
    with pytest.raises(BaselinesUnreadable, match="main") as told:
        parse_baselines("main", data)
    assert "--broken" in told.value.hint


@pytest.mark.parametrize(
    ("device", "key"), [("NVIDIA H100 80GB HBM3", "nvidia-h100-80gb-hbm3"), ("Tesla T4", "tesla-t4"), ("™", "unknown")]
)
def test_a_device_is_known_by_what_it_calls_itself(device: str, key: str) -> None:
    assert device_key(device) == key


@pytest.mark.parametrize("name", ["", "Main", "a/b", "../x", "-x", "a" * 64, "a b"])
def test_a_name_that_would_make_a_strange_object_is_refused(name: str) -> None:
    assert checked_name("release-1.2_x") == "release-1.2_x"
    with pytest.raises(ConfigError, match="not a valid name for a baseline"):
        checked_name(name)

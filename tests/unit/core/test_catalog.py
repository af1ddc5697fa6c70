"""What can be rented."""

from __future__ import annotations

import pytest

from orchestrator.core.config.grids import DTYPES
from orchestrator.core.market.catalog import CATALOG, GPU_NAMES, Gpu, carrier_of, closest_word, find_gpu, suggest


@pytest.mark.parametrize("gpu", CATALOG, ids=lambda gpu: gpu.name)
def test_every_entry_is_complete(gpu: Gpu) -> None:
    assert gpu.default_machine == gpu.machine_types[0].name
    assert gpu.zones
    assert len(set(gpu.zones)) == len(gpu.zones)
    assert set(gpu.regions) == {zone[:-2] for zone in gpu.zones}
    assert gpu.dtypes
    assert set(gpu.dtypes) <= set(DTYPES)
    assert gpu.quota_preemptible.startswith("PREEMPTIBLE_")
    assert (gpu.accelerator is None) == (gpu.compute_capability == "") == (gpu.memory_gb == 0)
    assert all(machine.vcpus > 0 and machine.memory_gb > 0 for machine in gpu.machine_types)


def test_no_machine_type_carries_two_kinds_of_gpu() -> None:
    names = [machine.name for gpu in CATALOG for machine in gpu.machine_types]
    assert len(set(names)) == len(names)


def test_a_gpu_is_found_by_any_of_its_names() -> None:
    assert find_gpu(" L4 ") is find_gpu("nvidia-l4") is find_gpu("l4") is CATALOG[0]
    assert find_gpu("nvidia-tesla-t4") is find_gpu("T4")
    assert find_gpu("l40") is None


def test_turing_has_no_bfloat16() -> None:
    t4 = find_gpu("t4")
    assert t4 is not None
    assert "bfloat16" not in t4.dtypes


def test_a_machine_type_says_what_it_carries() -> None:
    assert carrier_of("n1-standard-4") is find_gpu("t4")
    assert carrier_of("z9-mega-1") is None


def test_a_slip_of_the_pen_is_answered_with_the_closest_name() -> None:
    assert closest_word("A10", GPU_NAMES) == "a100"
    assert closest_word("quantum", GPU_NAMES) is None
    assert suggest("h10", GPU_NAMES) == "did you mean 'h100'? valid: l4, t4, a100, a100-80gb, h100, h200, b200, g4, cpu"
    assert suggest("quantum", GPU_NAMES) == "valid: l4, t4, a100, a100-80gb, h100, h200, b200, g4, cpu"

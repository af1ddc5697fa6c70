"""Runs that were measured, for commands that report and compare them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.report.written import csv_text, folder, records

RUNS = [f"20261121-04050{n}-l4-000{n}" for n in range(6)]


def measured(speed: float, seed: int, **more: str) -> str:
    speeds = {"bench": 1.5 * speed, "sdpa:default": 1.0, "bench:aa": 1.5 * speed}
    return csv_text(records(speeds=speeds, seed=seed, **more))


@pytest.fixture
def runs(tmp_path: Path) -> dict[str, str]:
    return {
        "before": str(folder(tmp_path / "before", measured(1.0, 1))),
        "same": str(folder(tmp_path / "same", measured(1.0, 2), driver="570")),
        "slower": str(folder(tmp_path / "slower", measured(0.9, 3))),
        "t4": str(folder(tmp_path / "t4", measured(0.3, 4, device="Tesla T4"), device="Tesla T4")),
        "sustained": str(folder(tmp_path / "sustained", measured(1.0, 5, regime="sustained"))),
    }

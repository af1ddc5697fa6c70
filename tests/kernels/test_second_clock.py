"""Which cells CUPTI is asked about, and that none is left out without a reason."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.harness import rows, watching
from kernels.harness.judging import Session, build_all
from kernels.harness.second_clock import ask_cupti, of_case
from kernels.harness.spec import parse_spec
from kernels.harness.timers import timer_for
from tests.kernels.harness_process import spec

CPU = torch.device("cpu")
ORIGIN = rows.Origin("run", "vm", "a device", "2")
MEDIANS = {
    "burst": {"sdpa:math": 20.0, "sdpa:default": 10.0, "sdpa:default:aa": 10.0},
    "sustained": {"sdpa:default": 9.0},
}


class Said:
    """Facts that are kept."""

    def __init__(self) -> None:
        self.facts: list[tuple[str, dict[str, Any]]] = []

    def send(self, fact: str, **keys: Any) -> None:
        self.facts.append((fact, keys))


def session(out: Path) -> Any:
    asked = parse_spec(json.dumps(spec(implementations=["sdpa:default", "sdpa:math", "sdpa:default:aa"])))
    said: Any = Said()
    return Session(asked, out, out, said, CPU, asked.workload.problem())  # type: ignore[union-attr]


def test_every_regime_of_every_implementation_has_a_row_or_a_reason(tmp_path: Path) -> None:
    here = session(tmp_path)
    case = here.spec.measure[0]
    with torch.inference_mode():
        table = of_case(here, build_all(here), ORIGIN, (case, MEDIANS), lambda kind: timer_for(CPU, kind))
    assert [(row["implementation"], row["regime"], row["unwatched_us"]) for row in table] == [
        ("sdpa:default", "burst", "10.000"), ("sdpa:default", "sustained", "9.000"), ("sdpa:math", "burst", "20.000"),
    ]  # fmt: skip
    assert {row["skipped"] for row in table} == {"its timer is not this device's"}
    columns = ("run_id", "device", "case_id", *here.spec.workload.columns, "implementation", "backend")
    rows.write_csv(tmp_path / "cupti.csv", (*columns, *watching.COLUMNS), table)
    (first, *_) = csv.DictReader((tmp_path / "cupti.csv").open(encoding="utf-8"))
    assert (first["case_id"], first["run_id"], first["device"]) == (case.id, "run", "a device")


@pytest.mark.parametrize("measured", [[], [("case", MEDIANS)]])
def test_a_processor_and_a_run_without_cases_ask_nobody(tmp_path: Path, measured: list[Any]) -> None:
    here = session(tmp_path)
    assert ask_cupti(here, {}, ORIGIN, measured, lambda kind: timer_for(CPU, kind)) == 0
    assert here.facts.facts == []
    assert not (tmp_path / "cupti.csv").exists()

"""FlashInfer-Bench's form: references and solutions are called on a workload's inputs and judged by its rule."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.forms.definition import BadWorkload
from kernels.forms.flashinfer import Task, filter_probs, load, stored_tensor, wrong_samples, wrong_tensor
from tests.kernels.harness_process import HarnessProcess, named
from tests.unit.core.test_gpumode import MINE, PAGED, SCALE

SOLUTIONS = {
    "fills": "def run(x, by, y):\n    y.copy_(x * by)\n",
    "returns": "def run(x, by):\n    return {'y': x * by}\n",
    "wrong": "def run(x, by):\n    return x + by\n",
    "zeros": "def run(x, by):\n    return x * 0\n",
}


def described(folder: Path, cases: list[dict[str, Any]], *definitions: dict[str, Any]) -> Path:
    own = folder / "own"
    own.mkdir()
    for one in definitions:
        (own / f"{one['name']}.json").write_text(json.dumps(one))
    for name, source in SOLUTIONS.items():
        solution = MINE | {"name": name, "sources": [{"path": "main.py", "content": source}]}
        (own / f"{name}.solution.json").write_text(json.dumps(solution))
    told = {
        "schema": 1,
        "name": "set",
        "definitions": {one["name"]: f"{one['name']}.json" for one in definitions},
        "solutions": {name: f"{name}.solution.json" for name in SOLUTIONS},
        "cases": [{"uuid": "u", "inputs": {}, "skip": "", "values": one["axes"], **one} for one in cases],
    }
    (folder / "own.json").write_text(json.dumps(told))
    return own


SMALL = {"by": {"type": "scalar", "value": 1e-5}}


def test_solutions_of_both_styles_are_judged_and_zeros_fail_on_small_answers(tmp_path: Path) -> None:
    case = {"definition": "scale_n4", "axes": {"M": 64}, "inputs": SMALL}
    gone = {"definition": "scale_n4", "axes": {"M": 8}, "inputs": {}, "skip": "its inputs are in x, which is not there"}
    spec = {
        "workload": {"form": "flashinfer", "path": str(described(tmp_path, [case, gone], SCALE))},
        "implementations": ["*"], "measure": {}, "correctness": {},
        "repeats": 2, "warmup": 1, "regime": "burst", "cache": "warm", "seed": 7, "threads": 1,
    }  # fmt: skip
    with HarnessProcess("measure", spec, tmp_path) as harness:
        code, facts = harness.finish()
        measured, skipped = named(facts, "case_finished")
    assert code == 10, harness.log()
    assert set(measured["median_us"]) == {"reference", "fills", "returns"}, measured
    assert "elements differ by more than" in measured["skipped"]["zeros"]
    assert "elements differ by more than" in measured["skipped"]["wrong"]
    assert skipped["median_us"] == {}
    assert set(skipped["skipped"].values()) == {"its inputs are in x, which is not there"}


def test_a_definition_without_workloads_has_offsets_that_its_constraints_ask_for(tmp_path: Path) -> None:
    axes = {"batch_size": 4, "len_indptr": 5, "num_pages": 64, "total_q": 32}
    workload = load(described(tmp_path, [{"definition": "paged", "axes": axes, "uuid": ""}], SCALE, PAGED))
    given = workload.inputs(axes, torch.device("cpu"), torch.Generator().manual_seed(1))
    assert given.args[0].tolist() == [0, 8, 16, 24, 32]
    assert workload.implementations["fills"].refusal({"definition": "paged"}) == "it solves scale_n4"


def test_a_tensor_of_a_safetensors_file_is_read_and_a_damaged_file_is_refused(tmp_path: Path) -> None:
    header = json.dumps({"x": {"dtype": "I32", "shape": [2, 2], "data_offsets": [0, 16]}}).encode()
    file = tmp_path / "x.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + struct.pack("<4i", 1, 2, 3, 4))
    assert stored_tensor(file, "x").tolist() == [[1, 2], [3, 4]]
    for damage in (b"", b"\xff" * 20, len(header).to_bytes(8, "little") + header):
        file.write_bytes(damage)
        with pytest.raises(BadWorkload, match="cannot read the tensor x"):
            stored_tensor(file, "x")


def test_an_answer_zeros_would_pass_is_judged_by_its_size_and_integers_exactly() -> None:
    right = torch.randn(64, generator=torch.Generator().manual_seed(1)) * 1e-6
    assert wrong_tensor(right.clone(), right, 1.0, ordered=True) == ""
    assert "elements differ" in wrong_tensor(torch.zeros(64), right, 1.0, ordered=True)
    assert "in the place of" in wrong_tensor(right.double(), right, 1.0, ordered=True)
    edges = torch.tensor([float("-inf"), float("nan"), 1.0])
    assert wrong_tensor(edges.clone(), edges, 1.0, ordered=True) == ""
    places = torch.tensor([[3, 1, 2]])
    assert wrong_tensor(places.flip(-1), places, 1.0, ordered=False) == ""
    assert wrong_tensor(places.flip(-1), places, 1.0, ordered=True) == "2 of 3 integers differ"
    assert wrong_tensor(places + 1, places, 1.0, ordered=False) != ""


def test_samples_are_judged_by_the_distribution_that_they_are_drawn_from(tmp_path: Path) -> None:
    definition = {
        "name": "top_k",
        "op_type": "sampling",
        "axes": {"B": {"type": "var"}, "V": {"type": "const", "value": 512}},
        "inputs": {"probs": {"shape": ["B", "V"], "dtype": "float32"}, "top_k": {"shape": ["B"], "dtype": "int32"}},
        "outputs": {"samples": {"shape": ["B"], "dtype": "int64"}},
        "reference": "def run(probs, top_k): ...",
    }
    (tmp_path / "x.json").write_text(json.dumps(definition))
    task, generator = Task(tmp_path / "x.json"), torch.Generator().manual_seed(3)
    probs = torch.softmax(torch.randn(256, 512, generator=generator) * 2, -1)
    top_k = torch.full((256,), 40, dtype=torch.int32)
    kept = filter_probs(probs.double(), top_k, None)
    assert int((kept > 0).sum(-1).max()) == 40
    honest = torch.multinomial(kept, 1, generator=generator).squeeze(-1)
    assert wrong_samples(task, (probs, top_k), honest) == ""
    assert "standard errors from" in wrong_samples(task, (probs, top_k), probs.argmax(-1))
    assert "have probability 0" in wrong_samples(task, (probs, top_k), probs.argmin(-1))
    assert wrong_samples(task, (probs, top_k), honest + 512) == "a sample is no token"
    nucleus = filter_probs(torch.tensor([[0.5, 0.3, 0.2]]).double(), None, torch.tensor([0.6]))
    assert [round(float(one), 3) for one in nucleus[0]] == [0.625, 0.375, 0.0]

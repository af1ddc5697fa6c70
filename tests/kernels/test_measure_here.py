"""Grids measured in shards on one's own machine: every case once, under the harness's own names."""

from __future__ import annotations

import csv
import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = ROOT / "kernels" / "attention" / "cuda" / "campaign" / "grids.yaml"

SHIPPED = ROOT / "configs" / "grids.yaml"


@pytest.fixture(scope="module")
def here() -> ModuleType:
    spec = importlib.util.spec_from_file_location("measure_here", ROOT / "scripts" / "measure_here.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def grid(here: ModuleType, *names: str) -> dict[str, Any]:
    found: dict[str, Any] = here.combine_grids(here.read_grids(PUBLISHED), list(names), [])
    return found


@pytest.mark.parametrize(
    ("path", "name"), [(path, name) for path in (PUBLISHED, SHIPPED) for name in yaml.safe_load(path.read_text())]
)
def test_a_named_grid_is_one_that_the_harness_takes_each_case_once(here: ModuleType, path: Path, name: str) -> None:
    measure = here.combine_grids(here.read_grids(path), [name], ["bfloat16"])
    assert len(here.case_ids(measure)) == len(measure["shapes"])


def test_the_published_grids_hold_the_whole_forward_grid_small_problems_and_decoding(here: ModuleType) -> None:
    ids = set(here.case_ids(grid(here, "forward", "forward-long", "small", "decode")))
    for seq in (256, 512, 1024, 2048, 4096, 8192, 16384):
        for head_dim in (64, 128):
            for mask in ("causal", "full"):
                for dtype in ("float16", "bfloat16"):
                    assert f"b4-h16-kv16-q{seq}-k{seq}-d{head_dim}-{mask}-{dtype}" in ids
    assert "b2-h8-kv8-q64-k64-d64-causal-float16" in ids
    assert "b4-h64-kv8-q1-k131072-d128-full-bfloat16" in ids


@pytest.mark.parametrize("shards", [1, 3, 4])
def test_shards_together_measure_every_case_once(here: ModuleType, tmp_path: Path, shards: int) -> None:
    measure = grid(here, "forward")
    ids = here.case_ids(measure)
    left = [set(ids) - set(here.skipped_cases(measure, tmp_path, f"{k}/{shards}")) for k in range(1, shards + 1)]
    assert sorted(one for own in left for one in own) == sorted(ids)
    assert max(map(len, left)) - min(map(len, left)) <= 1


def test_what_is_measured_already_is_not_measured_again(here: ModuleType, tmp_path: Path) -> None:
    measure = grid(here, "small")
    done = here.case_ids(measure)[3]
    (tmp_path / "cases").mkdir()
    (tmp_path / "cases" / f"{done}.csv").write_text("case_id\n")
    assert here.skipped_cases(measure, tmp_path, "1/1") == [done]


def test_the_folders_of_several_shards_become_one(here: ModuleType, tmp_path: Path) -> None:
    for shard in "ab":
        folder = tmp_path / shard
        (folder / "cases").mkdir(parents=True)
        (folder / "cases" / f"case-{shard}.csv").write_text(f"run_id,case_id,only_{shard}\n{shard},case-{shard},1\n")
        (folder / "cupti.csv").write_text(f"case_id\ncase-{shard}\n")
        (folder / "environment.json").write_text("{}")
        asked = {"shapes": [{"seq": 1}, {"seq": shard}], "dtypes": ["float16"]}
        names = ["bench", f"sdpa:{shard}"]
        spec = {"run_id": shard, "skip_cases": ["x"], "measure": asked, "implementations": names}
        (folder / "spec.json").write_text(json.dumps(spec))
    (tmp_path / "b" / "correctness.csv").write_text("passed\n")
    out = tmp_path / "all"
    out.mkdir()
    here.assemble_file(out, [tmp_path / "a", tmp_path / "b"])
    with (out / "measurements.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["run_id"], row["case_id"], row["only_a"], row["only_b"]) for row in rows] == [
        ("all", "case-a", "1", ""),
        ("all", "case-b", "", "1"),
    ]
    assert (out / "cupti.csv").read_text().split() == ["case_id", "case-a", "case-b"]
    assert (out / "correctness.csv").exists()
    assert json.loads((out / "spec.json").read_text()) == {
        "run_id": "all",
        "skip_cases": [],
        "implementations": ["bench", "sdpa:a", "sdpa:b"],
        "measure": {"shapes": [{"seq": 1}, {"seq": "a"}, {"seq": "b"}], "dtypes": ["float16"]},
    }

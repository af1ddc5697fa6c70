"""Counts the KernelBench problems on which the judge would accept an answer that proves nothing: zeros, the mean, a
copy of an input, the answer to other inputs. Takes folders of problems, writes one row a problem, and goes on where it
stopped: `python scripts/trivial_answers.py ROWS.csv KernelBench/level1 … --seconds 420`.
"""

from __future__ import annotations

import argparse
import ast
import csv
import math
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from kernels.forms.definition import BadWorkload, Definition
from kernels.forms.kernelbench import load
from kernels.harness import criterion
from kernels.harness.input_sets import free_memory
from kernels.harness.judge import Judge
from kernels.harness.workload import Unavailable

COLUMNS = ("problem", "divided_by", "device", "accepted", "right", "refused", "skipped", "seconds")
LARGE, MEMORY_SHARE = 64, {"cpu": 24, "cuda": 5}
"""Constants above the first are divided; inputs may take at most one part in so many of the free memory. A GPU that has
none left says so."""


def divide_constants(text: str, by: int) -> str:
    """A problem's source with its large constants divided, where they can be."""
    tree = ast.parse(text)
    for statement in tree.body:
        for node in ast.walk(statement) if isinstance(statement, ast.Assign) else ():
            if isinstance(node, ast.Constant) and type(node.value) is int and node.value > LARGE:
                node.value = max(node.value // by, 2) if node.value % by == 0 else node.value
    return ast.unparse(tree)


def trivial_answers(definition: Definition, judge: Judge, seed: int) -> Iterator[tuple[str, Any]]:
    """Answers that prove nothing, by name."""
    case: dict[str, Any] = dict(definition.cases[0])
    arguments = judge.drawn(case, seed)
    answer = definition.reference(arguments)
    if not isinstance(answer, torch.Tensor):
        return
    yield "zeros", torch.zeros_like(answer)
    if answer.is_floating_point():
        yield "mean", answer.double().mean().to(answer.dtype).expand(answer.shape).contiguous()
    for number, one in enumerate(arguments.tensors()):
        if one.shape == answer.shape and one.dtype == answer.dtype:
            yield f"input{number}", one.clone()
    yield "other_inputs", definition.reference(judge.drawn(case, seed + 1))


def row_of(problem: Path, by: int, device: torch.device) -> dict[str, str]:
    """The row of a problem: which answers were accepted, which are right within rounding, and which were refused."""
    names_by_outcome: dict[str, list[str]] = {"accepted": [], "right": [], "refused": []}
    skipped, began = "", time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        text = problem.read_text(encoding="utf-8")
        (Path(folder) / f"problem_{problem.stem}.py").write_text(divide_constants(text, by) if by > 1 else text)
        try:
            definition = load(Path(folder))
            with torch.inference_mode():
                meta = definition.inputs(definition.cases[0], torch.device("meta"), torch.Generator())
                size = sum(one.numel() * one.element_size() for one in meta.tensors())
                if size * MEMORY_SHARE[device.type] > free_memory(device):
                    raise MemoryError(f"inputs of {size >> 20} MiB")
                judge = Judge(definition, device)
                exact = judge.right({}, "all", 7)
                for name, answer in trivial_answers(definition, judge, 7):
                    check = criterion.judge_output(answer, exact, None, None, judge.tolerance({}))[0]
                    away = max((criterion.error_distance(answer, one)[0] for one in exact.leaves), default=math.nan)
                    size_of_right = max(float(one.double().abs().max()) for one in exact.leaves)
                    near = away <= 64 * torch.finfo(torch.float32).eps * size_of_right
                    names_by_outcome["right" if near else "accepted" if check.passed else "refused"].append(name)
        except (BadWorkload, Unavailable, MemoryError, torch.OutOfMemoryError, RuntimeError) as exc:
            skipped = f"{type(exc).__name__}: {exc}".splitlines()[0][:160]
    cells = {key: " ".join(names) for key, names in names_by_outcome.items()}
    seconds = f"{time.monotonic() - began:.1f}"
    name = f"{problem.parent.name}/{problem.stem}"
    about = {"problem": name, "divided_by": str(by), "device": device.type}
    return about | cells | {"skipped": skipped, "seconds": seconds}


def main(arguments: list[str]) -> int:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("rows", type=Path)
    asked.add_argument("folders", type=Path, nargs="+")
    asked.add_argument("--divide", type=int, default=1, help="divide the problems' large constants by this")
    asked.add_argument("--seconds", type=float, default=420, help="begin no problem after this time")
    options = asked.parse_args(arguments)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    began = time.monotonic()
    before = list(csv.DictReader(options.rows.open())) if options.rows.exists() else []
    done = {row["problem"] for row in before if not row["skipped"]}
    with options.rows.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if not before:
            writer.writeheader()
        for problem in (one for folder in options.folders for one in sorted(folder.glob("*.py"))):
            if f"{problem.parent.name}/{problem.stem}" in done:
                continue
            if time.monotonic() - began > options.seconds:
                break
            writer.writerow(row_of(problem, options.divide, device))
            file.flush()
    table = {row["problem"]: row for row in csv.DictReader(options.rows.open())}.values()
    judged = [row for row in table if not row["skipped"]]
    accepted = [f"{row['problem']}: {row['accepted']}" for row in judged if row["accepted"]]
    print(f"{len(judged)} problems judged, {len(table) - len(judged)} skipped, {len(accepted)} accept such an answer")
    print("\n".join(accepted))
    return int(bool(accepted))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Knows the right answers of a user's own workload, in a process where none of its implementations runs."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from kernels.forms.definition import Arguments, BadWorkload, Definition, in_double, mapped
from kernels.harness import criterion, roof
from kernels.harness.answers import Reply, read, unflattened
from kernels.harness.workload import Check


class Judge:
    """Knows the right answers, and says how far others are from them. Runs none of the implementations."""

    def __init__(self, definition: Definition, device: torch.device) -> None:
        self.definition, self.device = definition, device
        self.to_double = in_double if definition.exact else (lambda one: one)
        if definition.exact:
            torch.backends.cudnn.allow_tf32 = False
        self.exact: dict[tuple[str, int], criterion.Exact] = {}
        self.baseline: dict[str, criterion.Errors] = {}
        self.dtypes: dict[str, list[torch.dtype]] = {}

    def describe(self) -> Reply:
        """The workload as plain data."""
        one = self.definition

        def number(of: Callable[[Any], float] | None, case: Any) -> float | None:
            return None if of is None else float(of(case))

        return {
            "name": one.name,
            "file": one.file.name,
            "axes": list(one.axes),
            "cases": [dict(case) for case in one.cases],
            "skip": [one.skip(case, self.device) if one.skip else "" for case in one.cases],
            "flops": [number(one.flops, case) for case in one.cases],
            "bytes": [number(one.bytes, case) for case in one.cases],
            "implementations": list(one.implementations),
            "baselines": list(one.baselines),
            "requirements": list(one.requirements),
            "tests": [dict(case) for case in one.tests],
            "writes": one.writable is not None,
        }

    def writable(self, case: dict[str, Any], seed: int) -> Reply:
        """The places among the inputs' tensors that an implementation may write to. Uninitialised memory is told by
        what PyTorch fills it with in its deterministic mode."""
        find = self.definition.writable
        if find is None:
            return {"places": []}
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            drawn = self.drawn(case, seed)
        finally:
            torch.use_deterministic_algorithms(False)
        try:
            return {"places": find(drawn)}
        except (torch.OutOfMemoryError, MemoryError):
            raise
        except Exception as exc:
            raise self.refused(exc) from exc

    def refused(self, exc: Exception) -> BadWorkload:
        """The workload's own fault: its reference raises."""
        told = place(exc, self.definition.file)
        return BadWorkload(f"{told}: the reference raises {type(exc).__name__}: {exc}")

    def by_own_check(self, case: dict[str, Any], seed: int, output: Any) -> Check:
        """What the workload's own check says, with how far the output is from the reference's where they compare."""
        assert self.definition.check is not None, "it has one"
        output = mapped(output, lambda one: one.to(self.device))
        try:
            words = self.definition.check(self.drawn(case, seed), output)
        except (torch.OutOfMemoryError, MemoryError):
            raise
        except Exception as exc:
            words = f"it raises {type(exc).__name__}: {exc}"
        try:
            error = criterion.apart(output, self.definition.reference(self.drawn(case, seed)))
        except Exception as exc:
            raise self.refused(exc) from exc
        reason = f"the problem's own check: {words}" if words else ""
        return Check(not words, error, float("nan"), reason)

    def judge(
        self, case: dict[str, Any], case_id: str, seed: int, tree: Any, files: list[Any], baseline: bool
    ) -> Reply:
        """The verdict on an answer to the inputs of a seed. The first baseline's errors are remembered: they count for
        whatever is judged after it. Raises `BadWorkload` where the reference itself does not do."""
        output = unflattened(tree, [read(one) for one in files])
        if self.definition.check is not None:
            return told_of(self.by_own_check(case, seed, output))
        exact = self.right(case, case_id, seed)
        _, leaves_out = criterion.flattened(output)
        tf32 = baseline and self.device.type == "cuda"
        verdict, errors = criterion.judged(
            output,
            exact,
            self.dtypes.get(case_id),
            None if baseline else self.baseline.get(case_id),
            self.definition.tolerance,
            tf32=tf32,
        )
        if baseline and verdict.passed and errors is not None:
            self.baseline[case_id] = errors.widest(self.baseline.get(case_id))
            self.dtypes.setdefault(case_id, [one.dtype for _, one in leaves_out])
        return told_of(verdict)

    def roof(self) -> Reply:
        """Bytes and floating-point operations a second, the most that a few plain programmes reached."""
        return roof.measured(self.device)

    def drawn(self, case: dict[str, Any], seed: int) -> Arguments:
        generator = torch.Generator(device=self.device)
        generator.manual_seed(seed)
        return self.definition.inputs(case, self.device, generator)

    def right(self, case: dict[str, Any], case_id: str, seed: int) -> criterion.Exact:
        """The right answer for a seed. Two are kept at most."""
        known = self.exact.get((case_id, seed))
        if known is not None:
            return known
        arguments = self.drawn(case, seed)
        inputs = [one for one in arguments.tensors() if one.is_floating_point()]
        if inputs and case_id not in self.dtypes and not self.definition.baselines:
            self.dtypes[case_id] = [inputs[0].dtype]
        noise = torch.Generator(device=self.device)
        noise.manual_seed(seed ^ 0x5EED)
        try:
            made = criterion.exact_of(self.definition.reference, arguments, noise, self.to_double)
        except (torch.OutOfMemoryError, MemoryError):
            raise
        except Exception as exc:
            raise self.refused(exc) from exc
        while len(self.exact) >= 2:
            self.exact.pop(next(iter(self.exact)))
        self.exact[case_id, seed] = made
        return made

    def leave(self) -> Reply:
        """Nothing of the case is kept."""
        self.exact, self.baseline, self.dtypes = {}, {}, {}
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return {}


def told_of(verdict: Check) -> Reply:
    """A verdict as plain data."""
    return {
        "passed": verdict.passed,
        "max_abs_error": none_of(verdict.max_abs_error),
        "limit": none_of(verdict.limit),
        "reason": verdict.reason,
    }


def none_of(value: float) -> float | None:
    return None if value != value or value in (float("inf"), float("-inf")) else value


def place(exc: BaseException, file: Path) -> str:
    """`file.py:12`: the innermost line of the workload's own that an exception came through."""
    frames = traceback.extract_tb(exc.__traceback__)
    own = [one for one in frames if Path(one.filename).parent == file.parent]
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else file.name

"""Knows the right answers of a user's own workload, in a process where none of its implementations runs."""

from __future__ import annotations

import contextlib
import operator
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from kernels.forms.definition import Arguments, BadWorkload, Definition, in_double, map_tensors, place
from kernels.harness import criterion, roof
from kernels.harness.answers import (
    Reply,
    free_cached_memory,
    read_tensor,
    rebuild_answer,
    repeats_of,
    size_of,
)
from kernels.harness.workload import Check, Unavailable, one_line

LARGE_BYTES = 1 << 30
"""With inputs of at least this size the judge keeps only one right answer."""


class Judge:
    """Computes the right answers, and judges how far others are from them. It runs none of the implementations."""

    def __init__(self, definition: Definition, device: torch.device) -> None:
        self.definition, self.device = definition, device
        self.to_double = in_double if definition.exact else (lambda one: one)
        if definition.exact:
            torch.backends.cudnn.allow_tf32 = False
        self.exact: dict[tuple[str, int], criterion.Exact] = {}
        self.baseline: dict[str, criterion.Errors] = {}
        self.dtypes: dict[str, list[torch.dtype]] = {}
        self.called_twice: set[str] = set()
        """The cases for which the reference has given the same answer twice."""

    def describe(self) -> Reply:
        """The workload as plain data."""
        definition = self.definition

        def number(of: Callable[[Any], float] | None, case: Any) -> float | None:
            return None if of is None else float(of(case))

        return {
            "name": definition.name,
            "file": definition.file.name,
            "axes": list(definition.axes),
            "cases": [dict(case) for case in definition.cases],
            "skip": [definition.skip(case, self.device) if definition.skip else "" for case in definition.cases],
            "flops": [number(definition.flops, case) for case in definition.cases],
            "bytes": [number(definition.bytes, case) for case in definition.cases],
            "implementations": list(definition.implementations),
            "builds": [name for name, one in definition.implementations.items() if must_build(one)],
            "baselines": list(definition.baselines),
            "requirements": list(definition.requirements),
            "tests": [dict(case) for case in definition.tests],
            "writes": definition.writable is not None,
            "ranking": definition.ranking,
        }

    def writable(self, case: dict[str, Any], seed: int) -> Reply:
        """The indices of the input tensors that an implementation may write to: those of uninitialised memory. They are
        recognised by the values with which PyTorch fills such memory in its deterministic mode."""
        find = self.definition.writable
        if find is None:
            return {"places": []}
        torch.set_deterministic_debug_mode("warn")  # as use_deterministic_algorithms, without importing the compiler
        try:
            drawn = self.drawn(case, seed)
        finally:
            torch.set_deterministic_debug_mode("default")
        try:
            return {"places": find(drawn)}
        except (torch.OutOfMemoryError, MemoryError):
            raise
        except Exception as exc:
            raise self.refused(exc) from exc

    def refused(self, exc: Exception) -> BadWorkload:
        """The error to raise when the workload's reference raises: it is the workload's own fault."""
        where = place(exc, self.definition.file)
        return BadWorkload(f"{where}: the reference raises {type(exc).__name__}: {exc}")

    def by_own_check(self, case: dict[str, Any], seed: int, output: Any) -> Check:
        """The verdict of the workload's own check, with the distance from the reference's output where the two can be
        compared."""
        assert self.definition.check is not None, "it has one"
        output = map_tensors(output, lambda one: one.to(self.device))
        try:
            verdict_words = self.definition.check(self.drawn(case, seed), output)
        except (torch.OutOfMemoryError, MemoryError):
            raise
        except Exception as exc:
            verdict_words = f"it raises {type(exc).__name__}: {exc}"
        try:
            error = criterion.largest_difference(output, self.definition.reference(self.drawn(case, seed)))
        except Exception as exc:
            raise self.refused(exc) from exc
        reason = f"the problem's own check: {verdict_words}" if verdict_words else ""
        return Check(not verdict_words, error, float("nan"), reason)

    def judge(
        self, case: dict[str, Any], case_id: str, seed: int, tree: Any, files: list[Any], baseline: bool
    ) -> Reply:
        """The verdict on an answer to the inputs of a seed. The errors of the first baseline are kept, as they allow
        for errors of the answers that are judged later. Raises `BadWorkload` where the reference itself fails."""
        if self.definition.check is not None:
            output = rebuild_answer(tree, [read_tensor(one, self.device) for one in files])
            verdict, size = self.by_own_check(case, seed, output), size_of(output)
            if size >= LARGE_BYTES:
                del output
                free_cached_memory(self.device)
            return {**reply_of(verdict), "bytes": size}
        exact = self.right(case, case_id, seed)
        output = rebuild_answer(tree, [read_tensor(one, self.device) for one in files])
        _, leaves_out = criterion.flatten_output(output)
        tf32 = baseline and self.device.type == "cuda"
        verdict, errors = criterion.judge_output(
            output,
            exact,
            self.dtypes.get(case_id),
            None if baseline else self.baseline.get(case_id),
            self.tolerance(case),
            tf32=tf32,
        )
        if baseline and verdict.passed and errors is not None:
            self.baseline[case_id] = errors.widest(self.baseline.get(case_id))
            self.dtypes.setdefault(case_id, [one.dtype for _, one in leaves_out])
        size = size_of(output)
        if size >= LARGE_BYTES:
            del output, leaves_out
            free_cached_memory(self.device)
        return {**reply_of(verdict), "bytes": size}

    def judge_repeated(
        self, case: dict[str, Any], case_id: str, seeds: list[int], tree: Any, files: list[Any], baseline: bool
    ) -> Reply:
        """The first wrong one among many answers, stacked by the seed of their inputs, or the last right one, and how
        many there were. An answer that equals the one before it in every bit has that one's verdict."""
        stacked = rebuild_answer(tree, [read_tensor(one, self.device) for one in files])
        reply, number = reply_of(Check(False, float("nan"), float("nan"), "no call was made")), 0
        for seed, answers in zip(seeds, stacked, strict=False):
            for at, is_repeat in enumerate(repeats_of(answers)):
                number += 1
                if is_repeat:
                    continue
                answer = map_tensors(answers, operator.itemgetter(at))
                reply = reply_of(self.verdict(case, case_id, seed, answer, baseline))
                if not reply["passed"]:
                    return {**reply, "calls": number}
        return {**reply, "calls": number}

    def verdict(self, case: dict[str, Any], case_id: str, seed: int, output: Any, baseline: bool) -> Check:
        """The verdict on one answer; nothing is kept of it."""
        if self.definition.check is not None:
            return self.by_own_check(case, seed, output)
        return criterion.judge_output(
            output,
            self.right(case, case_id, seed),
            self.dtypes.get(case_id),
            None if baseline else self.baseline.get(case_id),
            self.tolerance(case),
            tf32=baseline and self.device.type == "cuda",
        )[0]

    def borrowed(self, files: list[Any]) -> Reply:
        """The sums of lent answers, from which the harness learns whether lending between two processes works."""
        return {"sums": [float(read_tensor(one, self.device).double().sum().item()) for one in files]}

    def roof(self) -> Reply:
        """The most bytes and floating-point operations per second that a few simple programs reached."""
        return roof.measure_roof(self.device)

    def drawn(self, case: dict[str, Any], seed: int) -> Arguments:
        generator = torch.Generator(device=self.device)
        generator.manual_seed(seed)
        return self.definition.inputs(case, self.device, generator)

    def tolerance(self, case: dict[str, Any]) -> Mapping[str, float] | None:
        """The tolerance that the workload itself gives; None where it gives none."""
        tolerance = self.definition.tolerance
        return tolerance(case) if callable(tolerance) else tolerance

    def right(self, case: dict[str, Any], case_id: str, seed: int) -> criterion.Exact:
        """The right answer for a seed. At most two are kept, and only one if it is large."""
        exact_answer = self.exact.get((case_id, seed))
        if exact_answer is not None:
            return exact_answer
        arguments = self.drawn(case, seed)
        inputs = [one for one in arguments.tensors() if one.is_floating_point()]
        if inputs and case_id not in self.dtypes and not self.definition.baselines:
            self.dtypes[case_id] = [inputs[0].dtype]
        large = sum(one.numel() * one.element_size() for one in arguments.tensors()) >= LARGE_BYTES
        while self.exact if large else len(self.exact) >= 2:
            self.exact.pop(next(iter(self.exact)))
        made = self.computed(case, seed, arguments, twice=case_id not in self.called_twice, large=large)
        if large:
            free_cached_memory(self.device)
        self.exact[case_id, seed] = made
        self.called_twice.add(case_id)
        return made

    def computed(
        self, case: dict[str, Any], seed: int, arguments: Arguments, *, twice: bool, large: bool
    ) -> criterion.Exact:
        """Computes the right answer. Where large inputs leave no room it is computed once instead of twice, and if that
        fails too, in the type of the inputs, which is better than no verdict. Raises `BadWorkload` where the reference
        itself fails."""
        noise = self.noise(seed) if self.tolerance(case) is None else None
        ways = [(self.to_double, twice), (self.to_double, False), (lambda one: one, False)][:: 1 if large else 3]
        for number, (to_double, again) in enumerate(ways, start=1):
            try:
                made = criterion.exact_of(self.definition.reference, arguments, noise, to_double, twice=again)
                if noise is not None or (large and self.device.type == "cpu"):
                    return made
                try:
                    return self.sharper(made, case, seed, arguments, to_double)
                except torch.OutOfMemoryError:
                    if not large:
                        raise
                    return made
            except (torch.OutOfMemoryError, MemoryError):
                if number == len(ways):
                    raise
            except criterion.ReferenceRaised as exc:
                cause = exc.__cause__
                assert isinstance(cause, Exception), "it was raised from one"
                raise self.refused(cause) from cause
            except ValueError as exc:
                raise self.refused(exc) from exc
            except (RuntimeError, TypeError) as exc:
                raise Unavailable(f"the judge cannot compare answers of this kind: {one_line(str(exc))}") from exc
            free_cached_memory(self.device)
        raise AssertionError("the last way returns or raises")

    def noise(self, seed: int) -> torch.Generator:
        """The generator of the roundings with which the problem's own sensitivity is found."""
        made = torch.Generator(device=self.device)
        made.manual_seed(seed ^ 0x5EED)
        return made

    def sharper(
        self,
        exact: criterion.Exact,
        case: dict[str, Any],
        seed: int,
        arguments: Arguments,
        to_double: Callable[[Any], Any],
    ) -> criterion.Exact:
        """The right answer under the workload's own tolerance, with the answer to other inputs. Where that tolerance
        would pass an answer that proves nothing, what justifies an error is found too."""
        tolerance = self.tolerance(case)
        assert tolerance is not None, "without one the criterion of ours decides anyway"
        reference = self.definition.reference
        other = criterion.exact_of(reference, self.drawn(case, seed ^ 0x57A1E), None, to_double, twice=False)
        exact = criterion.with_stale(exact, other)
        if not criterion.is_vacuous(exact, tolerance):
            return exact
        exact_answer = criterion.exact_of(reference, arguments, self.noise(seed), to_double, twice=False)
        return replace(exact_answer, trivial=exact.trivial)

    def compile_helpers(self) -> Reply:
        """Lets Triton, if the workload uses it, compile the libraries that it needs for any kernel."""
        if "triton" in sys.modules:
            with contextlib.suppress(Exception):
                _ = sys.modules["triton"].runtime.driver.active.utils
        return {}

    def leave(self) -> Reply:
        """Drops everything of the case."""
        self.exact, self.baseline, self.dtypes, self.called_twice = {}, {}, {}, set()
        free_cached_memory(self.device)
        return {}


def must_build(implementation: Any) -> bool:
    """Whether an implementation has something to build before its first call: an entry of a `.cu` file, or a file of
    its own that is imported."""
    return isinstance(implementation, dict) or hasattr(implementation, "ready")


def reply_of(verdict: Check) -> Reply:
    """A verdict as plain data."""
    return {
        "passed": verdict.passed,
        "max_abs_error": none_of(verdict.max_abs_error),
        "limit": none_of(verdict.limit),
        "reason": verdict.reason,
    }


def none_of(value: float) -> float | None:
    return None if value != value or value in (float("inf"), float("-inf")) else value

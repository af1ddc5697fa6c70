"""Drives the harness as the agent does: a real process, facts read from its output, acknowledgements written to its input."""

from __future__ import annotations

import csv
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.kernels.cuda.compiled import place_of
from tests.support.patience import PATIENCE_S
from tests.support.torch_forks import Fork, TorchForks

ROOT = Path(__file__).resolve().parents[2]
ENDED: dict[str, Any] = {"fact": "(the facts ended)"}


def shape(seq: int, **changes: Any) -> dict[str, Any]:
    """A full shape with small defaults."""
    full = {"batch": 1, "heads": 2, "kv_heads": 2, "seq_q": seq, "seq_k": seq, "head_dim": 16, "causal": False}
    return full | changes


def spec(**changes: Any) -> dict[str, Any]:
    """A small valid spec."""
    small = {
        "implementations": ["bench", "sdpa:default", "sdpa:cudnn", "sdpa:math"],
        "measure": {"shapes": [shape(8), shape(9, causal=True)], "dtypes": ["float32"]},
        "correctness": {"shapes": [shape(5)], "dtypes": ["float32", "bfloat16"], "max_abs_error": 0.01},
        "repeats": 4,
        "warmup": 1,
        "regime": "burst",
        "cache": "warm",
        "seed": 7,
        "threads": 1,
        "skip_cases": [],
        "run_id": "20261121-040506-cpu-7f3a",
        "vm": "bench-20261121-040506-cpu-7f3a-1",
    }
    return small | changes


@cache
def forks() -> TorchForks:
    """One for this process and its tests."""
    return TorchForks()


def run_forked(
    module: str, *arguments: str, cwd: Path = ROOT, environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """`python -m module arguments`, where PyTorch is imported already."""
    with tempfile.TemporaryFile("w+") as log:
        process = forks().start(module, *arguments, cwd=cwd, environ=environ or os.environ, log=log)
        process.stdin.close()
        with process.stdout as lines:
            out = lines.read()
        code = process.wait()
        log.seek(0)
        return subprocess.CompletedProcess([module, *arguments], code, out, log.read())


class HarnessProcess:
    """One step of the harness; killed, if need be, when the `with` block ends. With `fresh` it imports torch itself, as
    it does on a machine, where the import is what a test is about. What is built once serves all, unless a test names a
    `cache` of its own."""

    def __init__(
        self,
        step: str,
        spec: Mapping[str, Any] | str,
        directory: Path,
        *,
        root: Path = ROOT,
        cache: Path | None = None,
        options: tuple[str, ...] = (),
        environ: Mapping[str, str] | None = None,
        fresh: bool = False,
        module: str = "kernels.harness",
    ) -> None:
        self.out = directory / "out"
        path = directory / "spec.json"
        path.write_text(spec if isinstance(spec, str) else json.dumps(spec))
        arguments = [step, "--spec", str(path), "--out", str(self.out), *options]
        env = {**os.environ, "BENCH_KERNEL_CACHE": str(cache or place_of(directory) / "kernels"), **(environ or {})}
        self.log_path = directory / "log.txt"
        self.log_file = self.log_path.open("w")
        self.process: Fork | subprocess.Popen[str]
        if fresh:
            pipe, command = subprocess.PIPE, [sys.executable, "-m", module, *arguments]
            self.process = subprocess.Popen(
                command, cwd=root, env=env, text=True, stdin=pipe, stdout=pipe, stderr=self.log_file
            )
        else:
            self.process = forks().start(module, *arguments, cwd=root, environ=env, log=self.log_file)
        self.facts: queue.Queue[dict[str, Any]] = queue.Queue()
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def __enter__(self) -> HarnessProcess:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.process.kill()
        self.process.wait()
        self.reader.join()
        assert self.process.stdin is not None
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass  # it died with an acknowledgement unread
        self.log_file.close()

    def read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self.facts.put(json.loads(line))
        self.facts.put(ENDED)

    def next(self) -> dict[str, Any]:
        """The next fact, or `ENDED`."""
        return self.facts.get(timeout=PATIENCE_S)

    def until(self, fact: str) -> dict[str, Any]:
        """The next fact of this name; others on the way are acknowledged."""
        while (said := self.next())["fact"] != fact:
            assert said is not ENDED, f"no {fact}: {self.log()}"
            self.acknowledge(said)
        return said

    def acknowledge(self, fact: Mapping[str, Any]) -> None:
        if "path" in fact:
            self.write(json.dumps({"ack": fact["path"]}))

    def write(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def hang_up(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def finish(self) -> tuple[int, list[dict[str, Any]]]:
        """Acknowledge all that comes; the exit code and the facts."""
        said = []
        while (fact := self.next()) is not ENDED:
            said.append(fact)
            self.acknowledge(fact)
        return self.process.wait(PATIENCE_S), said

    def log(self) -> str:
        return self.log_path.read_text()

    def rows(self, case_id: str) -> list[dict[str, str]]:
        return read_csv(self.out / "cases" / f"{case_id}.csv")


class Served(HarnessProcess):
    """A harness that performs steps as the agent names them."""

    def step(self, name: str) -> tuple[int, list[dict[str, Any]]]:
        """Perform one step; its exit code and its facts."""
        self.write(json.dumps({"step": name}))
        said = []
        while (fact := self.next())["fact"] not in ("step_ended", "(the facts ended)"):
            said.append(fact)
            self.acknowledge(fact)
        return fact.get("code", 99), said


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def named(facts: list[dict[str, Any]], fact: str) -> list[dict[str, Any]]:
    return [one for one in facts if one["fact"] == fact]

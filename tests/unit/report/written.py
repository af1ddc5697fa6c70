"""Result files of runs that never happened, as the harness would have written them."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from kernels.harness.columns import measurement_columns
from orchestrator.analysis.samples import Reader
from orchestrator.analysis.study import Study, study
from orchestrator.core.bundled import AXES
from orchestrator.report.report import Report

RUN = "20261121-040506-l4-7f3a"
SPEEDS = {"bench": 1.5, "sdpa:default": 1.0, "sdpa:math": 0.5, "bench:aa": 1.5}
BEGUN = datetime(2026, 11, 21, 4, 5, 6, tzinfo=UTC)


def records(
    *,
    run_id: str = RUN,
    device: str = "NVIDIA L4",
    speeds: dict[str, float] = SPEEDS,
    lengths: Sequence[int] = (128, 1024),
    blocks: int = 50,
    noise: float = 0.01,
    seed: int = 1,
    **changes: str,
) -> Iterator[dict[str, str]]:
    """Rows in the order measured: latencies of `64 * length / speed` nanoseconds, give or take."""
    rng = np.random.default_rng(seed)
    at = BEGUN
    for length in lengths:
        case = f"b2-h8-kv8-q{length}-k{length}-d64-full-float16"
        for block in range(1, blocks + 1):
            for position, name in enumerate(rng.permutation(list(speeds)), start=1):
                at += timedelta(milliseconds=3)
                latency = 0.064 * length / speeds[name] * np.exp(noise * rng.standard_normal())
                yield {
                    "run_id": run_id, "vm": f"bench-{run_id}-1", "case_id": case, "device": device,
                    "implementation": name, "backend": "fa2" if name.startswith("bench") else name[5:],
                    "dtype": "float16", "batch": "2", "heads": "8", "kv_heads": "8", "seq_q": str(length),
                    "seq_k": str(length), "head_dim": "64", "causal": "false", "regime": "burst",
                    "block": str(block), "repeat": str(block), "latency_us": f"{latency:.3f}",
                    "sm_clock_mhz": "2040", "mem_clock_mhz": "6251", "power_w": f"{60 + rng.random():.1f}",
                    "temperature_c": "50", "throttle": "none", "max_abs_error": "0.0004", "torch": "2.13.0",
                    "started_at": at.isoformat(timespec="microseconds").replace("+00:00", "Z"), "skipped": "",
                    "position": str(position), "calls": "1", "cpu_mhz": "2450", "load_1m": "0.5",
                    "steal_percent": "0",
                } | changes  # fmt: skip


def both(**changes: Any) -> list[dict[str, str]]:
    """One run in two regimes: in the sustained one everything is slower, and the kernel has lost its lead."""
    burst = records(cache="cold", **changes)
    speeds = {"bench": 0.9, "sdpa:default": 0.8, "sdpa:math": 0.4, "bench:aa": 0.9}
    sustained = records(
        speeds=speeds,
        seed=2,
        regime="sustained",
        cache="cold",
        calls="100",
        joules_per_call="0.03",
        stopped="repeats",
        **changes,
    )
    return [*burst, *sustained]


def skip(implementation: str, reason: str, **changes: str) -> dict[str, str]:
    """The one row of an implementation that was not timed."""
    row = next(records(lengths=(128,), speeds={implementation: 1.0}))
    empty = dict.fromkeys(("block", "repeat", "latency_us", "position", "calls", "max_abs_error"), "")
    return row | empty | {"skipped": reason} | changes


def csv_text(rows: Iterator[dict[str, str]] | Sequence[dict[str, str]], columns: Sequence[str] = ()) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(
        text, columns or measurement_columns(AXES), extrasaction="ignore", restval="", lineterminator="\n"
    )
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def studied(text: str) -> Study:
    reader = Reader()
    reader.read(text.splitlines(keepends=True), "measurements.csv")
    groups = reader.groups()
    return study(groups, reader.told())


ENVIRONMENT: dict[str, Any] = {
    "schema": 1, "device": "NVIDIA L4", "device_kind": "cuda", "driver": "580.1", "torch": "2.13.0", "cpu_count": 4,
    "git_commit": "c0ffee", "git_dirty": False, "device_uuid_sha256": "ab",
}  # fmt: skip
MANIFEST: dict[str, Any] = {
    "schema": 1, "run_id": RUN, "complete": True, "cost_usd": "0.12", "image": "image-1",
    "vms": [{"name": "bench-1", "zone": "us-central1-a", "machine_type": "g2-standard-4"}],
}  # fmt: skip


def reported(text: str, **manifest: Any) -> Report:
    return Report(studied(text), ENVIRONMENT, {"compiler_version": "nvrtc 13.0"}, MANIFEST | manifest)


def folder(path: Path, text: str, **environment: Any) -> Path:
    """A folder as `bench fetch` leaves it."""
    path.mkdir(parents=True)
    (path / "measurements.csv").write_text(text)
    (path / "environment.json").write_text(json.dumps(ENVIRONMENT | environment))
    (path / "manifest.json").write_text(json.dumps(MANIFEST))
    return path

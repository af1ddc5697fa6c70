"""A home whose bucket holds something for every command to show: runs, an image, profiles, a baseline, costs."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from orchestrator.core.images import ImageRecord
from orchestrator.core.naming import artifacts_prefix
from orchestrator.store.documents import ImageRecords
from orchestrator.wiring import wire
from tests.integration.cli.conftest import Bench
from tests.kernels.fake_ncu import raw, rules
from tests.unit.site.written import store

NOTE = "a note of what was bought and why that is longer than what is left of a line at eighty columns, END"
CASE = "b2-h8-kv8-q1024-k1024-d64-full-float16"
IMAGE = "bench-image-l4-20261121-040000-0002"
AXES = {
    "dtype": "float16", "batch": "2", "heads": "8", "kv_heads": "8", "seq_q": "1024", "seq_k": "1024",
    "head_dim": "64", "causal": "false",
}  # fmt: skip


def fill(bench: Bench) -> tuple[str, str]:
    """Fills the bucket of `bench`; the ids of its two runs. They began two days and a half ago."""
    wiring = wire()
    first = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=60)
    older = store(wiring.bucket, 0, first=first, events=True, mode="embedded")
    newer = store(wiring.bucket, 1, first=first, events=True, mode="embedded", faster=1.2, user="grace")
    prefix = artifacts_prefix(newer)
    wiring.bucket.create(f"{prefix}log.txt", f"phase measure\nmeasured {CASE}\n".encode())
    rows = [
        {"case_id": CASE, "implementation": name, "tool": "ncu", "axes": AXES, "flops": None,
         "files": [f"profile/{name}.metrics.csv", f"profile/{name}.rules.csv"]}
        for name in ("bench", "sdpa-flash")
    ]  # fmt: skip
    rows.append({"case_id": CASE, "implementation": "sdpa:cudnn", "reason": "needs sm_80", "axes": AXES, "files": []})
    summary = {"device": "NVIDIA L4", "set": "roofline", "profiles": rows}
    wiring.bucket.create(f"{prefix}profile/summary.json", json.dumps(summary).encode())
    for name in ("bench", "sdpa-flash"):
        wiring.bucket.create(f"{prefix}profile/{name}.metrics.csv", raw().encode())
        wiring.bucket.create(f"{prefix}profile/{name}.rules.csv", rules().encode())
    ImageRecords(wiring.bucket, wiring.clock).create(image(first, IMAGE))
    bench("baseline", "set", "main", older)
    bench("costs", "add", "0.25", "--category", "ai", "--note", NOTE)
    return older, newer


def image(made: datetime, name: str) -> ImageRecord:
    return ImageRecord(
        name=name, gpu="l4", url=f"projects/embedded/global/images/{name}", image_id="7",
        base="projects/deeplearning-platform-release/global/images/pytorch-2-9-v20261101", torch="2.13.0",
        driver="580.95.05", kernel="6.8.0-1024-gcp", environment="e", disk_gb=60, archive_bytes=9 * 2**30,
        run="20261121-040000-cpu-0002", created_at=made, expires_at=made + timedelta(days=14), usd=Decimal("0.21"),
    )  # fmt: skip

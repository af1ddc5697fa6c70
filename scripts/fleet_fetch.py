"""`python3 scripts/fleet_fetch.py [CHILDREN] [ROWS]`: how long it takes to fetch the rows of a fleet from a bucket.

The bucket is a storage server on loopback. It has the children's rows as the measuring client has stored them.
"""

from __future__ import annotations

import gzip
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from orchestrator.adapters.google.credentials import Bearer
from orchestrator.adapters.google.storage import GoogleBucket
from orchestrator.core.names import child_run, rows_object
from orchestrator.embedded.server import EmbeddedCloud
from orchestrator.runs.fleet.results import compose_table, group_tables, pack_rows, stored_members
from tests.unit.fleet.test_rows import FLEET, case, child


def main(children: int, rows: int) -> int:
    folder = Path(tempfile.mkdtemp(prefix="fleet-fetch-"))
    with EmbeddedCloud(home=folder / "cloud") as cloud:
        bucket = GoogleBucket(cloud.bucket, endpoint=cloud.storage_url, credentials=Bearer(cloud.token))

        lines = case(child_run(FLEET, "l4", 0), "a", rows=rows).decode().splitlines(keepends=True)
        data, columns, count = pack_rows(
            child(0), {"a": lambda: lines}
        )  # all children have the same rows, as only the transfer is timed
        metadata = {"columns": ",".join(columns), "rows": str(count)}

        def store(index: int) -> None:
            bucket.replace(rows_object(FLEET, index), data, generation=0, metadata=metadata)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(store, range(children)))
        calls, began = bucket.calls, time.monotonic()
        ((header, parts),) = group_tables(stored_members(bucket, FLEET).values()).items()
        entry = compose_table(bucket, FLEET, header, parts)
        bucket.download(entry, folder / "measurements.csv.gz")
        seconds = time.monotonic() - began
        with gzip.open(folder / "measurements.csv.gz", "rb") as file:
            there = sum(1 for _ in file) - 1
        print(
            f"{children} children, {there} rows, {entry.size} bytes: {seconds:.1f} s, {bucket.calls - calls} storage "
            f"calls, 1 object read; load {os.getloadavg()[0]:.1f}"
        )
        bucket.close()
    return 0 if there == children * rows else 1


if __name__ == "__main__":
    raise SystemExit(main(*(int(text) for text in (sys.argv[1:] + ["1000", "1000"][len(sys.argv) - 1 :])[:2])))

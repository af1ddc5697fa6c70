"""Plays fleets on the embedded Batch under random weather, in simulated time: `--runs 500 --children 1000 --seed 1`.

Prints one line for each and, at the end, which laws were broken by which seeds. Exit code 1 when any was.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.unit.fleet.batch_judge import broken
from tests.unit.fleet.batch_story import shape, story


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--children", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    bad: dict[int, list[str]] = {}
    fired: Counter[str] = Counter()
    machines, began = 0, time.monotonic()
    for seed in range(options.seed, options.seed + options.runs):
        start, worked = time.monotonic(), time.process_time()
        with tempfile.TemporaryDirectory() as home:
            chosen = shape(seed, options.children)
            with story(Path(home) / "cloud", seed, children=options.children, **chosen) as told:
                seen = told.play()
        laws = broken(seen)
        if laws:
            bad[seed] = laws
        fired += seen.fired
        machines += seen.machines
        print(
            f"seed {seed}: {seen.stored}/{seen.children} stored, {seen.raced} raced, {seen.machines} machines, "
            f"at most {seen.most_at_once} of {seen.parallel} at once, {seen.jobs} jobs, {seen.generations} holds, "
            f"${seen.metered:.2f} of ${seen.held:.2f}, {seen.hours:.1f} h "
            f"[{time.monotonic() - start:.1f} s, {time.process_time() - worked:.1f} s of processor] "
            f"{'; '.join(laws) or 'ok'}",
            flush=True,
        )
    print(
        f"{options.runs} fleets of {options.children} children, {machines} machines, {sum(fired.values())} faults "
        f"({', '.join(f'{kind} {count}' for kind, count in fired.most_common())}): {len(bad)} broken, "
        f"{time.monotonic() - began:.0f} s, {time.process_time():.0f} s of processor"
    )
    for seed, laws in bad.items():
        print(f"seed {seed}: {'; '.join(laws)}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

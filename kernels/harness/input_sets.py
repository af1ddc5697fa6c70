"""Cold caches by rotation of inputs: each call gets inputs that the last-level cache no longer holds."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

AIM = 2
"""Between two uses of a set, sets of this many times the cache's size are read, as caches do not evict strictly in
order."""
MOST_SETS = {"cuda": 256, "cpu": 128}
"""The most sets. On a CPU each copy costs a call and a check before it is timed, which is much for tiny problems."""
ASSUMED_CACHE_BYTES = 32 << 20
"""The cache size that is assumed where it is not known."""
SHARE_OF_MEMORY = {"cuda": 4, "cpu": 8}
"""The sets take at most one part in so many of the free memory (a quarter, an eighth)."""


@dataclass(frozen=True, slots=True)
class Rotation:
    """How many copies of the inputs take turns, and the state of the cache for a call: `cold`, `warm` or `mixed`."""

    sets: int
    cache: str


def plan_rotation(
    cache: str, set_bytes: int, cache_bytes: int, free_bytes: int, most: int = MOST_SETS["cuda"]
) -> Rotation:
    """The number of copies that `cache` (`cold` or `warm`) needs, up to `most`. `set_bytes` is what one call reads and
    writes.

    Even a set that is larger than `AIM` caches gets a second one where memory allows. Where memory does not suffice for
    cold caches the state is `mixed`: some of the inputs may still be in the cache.
    """
    if cache == "warm":
        return Rotation(1, "warm")
    wanted = 1 + max(1, math.ceil(AIM * cache_bytes / set_bytes))
    sets = max(1, min(wanted, most, free_bytes // set_bytes))
    between = (sets - 1) * set_bytes
    return Rotation(sets, "cold" if between >= cache_bytes or set_bytes >= AIM * cache_bytes else "mixed")


def copy_inputs(inputs: Any, count: int, copied: Callable[[Any], Any]) -> list[Any]:
    """`count` sets of inputs in memory of their own, fewer where memory runs out. The first is `inputs`. All have the
    same values, so that one exact answer judges them all."""
    made = [inputs]
    try:
        while len(made) < count:
            made.append(copied(inputs))
    except (torch.OutOfMemoryError, MemoryError):
        pass
    return made


def cache_bytes(device: torch.device) -> int | None:
    """The size of the device's last-level cache, or None where it does not say."""
    if device.type == "cuda":
        return int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0)) or None
    return cpu_cache_bytes(usable_processors())


def free_bytes(device: torch.device) -> int:
    """The bytes of memory that input sets may take."""
    return free_memory(device) // SHARE_OF_MEMORY[device.type]


def free_memory(device: torch.device) -> int:
    """The bytes of free memory, on the device or on the host."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(free) + int(kept)
    try:
        match = re.search(r"(?m)^MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text(encoding="utf-8"))
    except OSError:
        match = None
    return int(match.group(1)) * 1024 if match else 1 << 30


def usable_processors() -> Iterable[int]:
    """The processors that this process may run on."""
    try:
        return sorted(os.sched_getaffinity(0))
    except AttributeError:
        return range(os.cpu_count() or 1)


def cpu_cache_bytes(cpus: Iterable[int], root: Path = Path("/sys/devices/system/cpu")) -> int | None:
    """The total size in bytes of the last-level caches of these processors, each counted once; None where sysfs does
    not say. A virtual machine shows what the host tells it, which may be the cache of the whole chip."""
    sizes: dict[tuple[int, str], int] = {}
    for cpu in cpus:
        for index in sorted((root / f"cpu{cpu}" / "cache").glob("index*")):
            kind, level, size = (sysfs_text(index / name) for name in ("type", "level", "size"))
            digits = re.fullmatch(r"(\d+)([KMG]?)", size)
            if kind in ("Unified", "Data") and level.isdigit() and digits:
                scale = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}[digits.group(2)]
                sizes[int(level), sysfs_text(index / "shared_cpu_list") or str(cpu)] = int(digits.group(1)) * scale
    last = max((level for level, _ in sizes), default=0)
    return sum(size for (level, _), size in sizes.items() if level == last) or None


def sysfs_text(path: Path) -> str:
    """The text of a file of sysfs; empty where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""

"""Builds kernels, checks each against its gates, keeps them in a cache, and says what was built."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from kernels import owned
from kernels.attention.cuda.compile.compiler import Compiled, Compiler, Target, compiler_flags
from kernels.attention.cuda.plan.variants import Chip, Entry, chip_of, header_sources
from kernels.attention.interface import BuildFailed


@dataclass(frozen=True, slots=True)
class Resources:
    """ptxas's report on one kernel: registers a thread, bytes spilled, bytes of stack."""

    registers: int
    spill_bytes: int
    stack_bytes: int


@dataclass(frozen=True, slots=True)
class Built:
    """One kernel, ready to load. `resources` is None for PTX: the driver assigns registers when it loads it."""

    name: str
    image: bytes
    seconds: float
    cached: bool
    shared_bytes: int
    resources: Resources | None

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.image).hexdigest()


def resources_in(log: str) -> Resources:
    """Read ptxas's verbose report of one kernel. Raises ValueError when it is not there."""
    registers = re.search(r"Used (\d+) registers", log)
    frame = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log)
    if not registers or not frame:
        raise ValueError("no resource report in the compiler's log")
    stack, stores, loads = map(int, frame.groups())
    return Resources(int(registers.group(1)), stores + loads, stack)


def check_gates(entry: Entry, chip: Chip, resources: Resources | None) -> None:
    """Raises `BuildFailed` for a kernel that spills or that its chip cannot hold."""
    if entry.shared_bytes > chip.shared_bytes_per_block:
        raise BuildFailed(
            f"{entry.name} needs {entry.shared_bytes} bytes of shared memory; "
            f"a block on {chip.name} has {chip.shared_bytes_per_block}"
        )
    if resources and (resources.spill_bytes or resources.stack_bytes):
        raise BuildFailed(
            f"{entry.name} spills: {resources.spill_bytes} bytes spilled, {resources.stack_bytes} bytes of stack",
            remedy="choose a smaller tile in kernels/attention/cuda/plan/variants.py",
        )


def source_sha256(entries: Iterable[Entry]) -> str:
    """The hash of all sources of the entries."""
    digest = hashlib.sha256()
    for text in [*header_sources().values(), *(entry.source for entry in entries)]:
        digest.update(text.encode() + b"\0")
    return digest.hexdigest()


class Cache:
    """Images on disk, each under the hash of all that made it: source, options, compiler, target."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, entry: Entry, target: Target, compiler: Compiler) -> Path:
        key = "\0".join((source_sha256([entry]), *compiler_flags(), compiler.name, compiler.version, target.name))
        digest = hashlib.sha256(key.encode()).hexdigest()[:32]
        return self.folder / f"{digest}-{target.name}-{entry.name}.{'ptx' if target.is_ptx else 'cubin'}"

    def load(self, path: Path) -> tuple[bytes, str] | None:
        """The image and the compiler's log, if both exist and are complete, and only a trusted user can have made
        them."""
        beside = path.with_suffix(".json")
        if not (owned.is_ours(path) and owned.is_ours(beside)):
            return None
        try:
            record = json.loads(beside.read_text())
            image = path.read_bytes()
        except (OSError, ValueError):
            return None
        if hashlib.sha256(image).hexdigest() != record.get("sha256"):
            return None
        return image, str(record.get("log", ""))

    def store(self, path: Path, image: bytes, log: str) -> None:
        """Stores an image and its log atomically, so that no incomplete file is left if the process is killed or
        another one builds the same. Raises `OSError`, also for a folder of another user."""
        if not owned.make_private_folder(path.parent):
            raise PermissionError(f"{path.parent} belongs to another user")
        record = json.dumps({"sha256": hashlib.sha256(image).hexdigest(), "log": log}).encode()
        for final, data in ((path, image), (path.with_suffix(".json"), record)):
            scratch = final.with_name(f"{final.name}.{os.getpid()}.tmp")
            scratch.write_bytes(data)
            owned.remove_others_rights(scratch)
            scratch.replace(final)


def build_one(entry: Entry, target: Target, compiler: Compiler, cache: Cache) -> Built:
    """Compile an entry or take it from the cache; either way it must pass its gates. Raises `BuildFailed`."""
    return build_all([entry], target, compiler, cache, 1)[0]


def build_all(
    entries: Sequence[Entry], target: Target, compiler: Compiler, cache: Cache, workers: int | None = None
) -> list[Built]:
    """Every entry, in order: those not in the cache are dealt out to `workers` compilers. Raises `BuildFailed`."""
    chip = chip_of(target.capability)
    if chip is None:
        raise BuildFailed(f"no kernels for {target.name}: they need sm_75 or newer")
    built = {entry.name: one for entry in entries if (one := from_cache(entry, target, compiler, cache, chip))}
    missing = [entry for entry in entries if entry.name not in built]
    workers = max(1, min(workers or os.cpu_count() or 1, len(missing)))

    def compile_share(share: Sequence[Entry]) -> list[Built]:
        compiled = compiler.compile([entry.source for entry in share], header_sources(), target)
        return [
            store_fresh(entry, one, target, compiler, cache, chip) for entry, one in zip(share, compiled, strict=True)
        ]

    with ThreadPoolExecutor(workers) as pool:
        for share in pool.map(compile_share, [missing[start::workers] for start in range(workers) if missing]):
            built.update({one.name: one for one in share})
    absent = [entry.name for entry in entries if entry.name not in built]
    if absent:
        raise BuildFailed(f"kernels missing from the build: {', '.join(absent)}")
    return [built[entry.name] for entry in entries]


def from_cache(entry: Entry, target: Target, compiler: Compiler, cache: Cache, chip: Chip) -> Built | None:
    """The cached kernel, if there is one and it still passes its gates."""
    started = time.perf_counter()
    built = cache.load(cache.path(entry, target, compiler))
    if built is None:
        return None
    image, log = built
    resources = check_resources(entry, log, target, chip)
    return Built(entry.name, image, time.perf_counter() - started, True, entry.shared_bytes, resources)


def store_fresh(
    entry: Entry, compiled: Compiled, target: Target, compiler: Compiler, cache: Cache, chip: Chip
) -> Built:
    """A kernel just compiled: cached once it has passed its gates."""
    resources = check_resources(entry, compiled.log, target, chip)
    with contextlib.suppress(OSError):  # a cache that cannot be written costs time later, not the build now
        cache.store(cache.path(entry, target, compiler), compiled.image, compiled.log)
    return Built(entry.name, compiled.image, compiled.seconds, False, entry.shared_bytes, resources)


def check_resources(entry: Entry, log: str, target: Target, chip: Chip) -> Resources | None:
    """The resources in a compiler's log, if they pass. Raises `BuildFailed`."""
    try:
        resources = None if target.is_ptx else resources_in(log)
    except ValueError as exc:
        raise BuildFailed(f"{entry.name}: {exc}") from exc
    check_gates(entry, chip, resources)
    complaint = re.search(r"[^\n]*\bC75\d\d\b[^\n]*", log)
    if complaint:  # ptxas runs wgmma one after another, or leaves registers where they are
        raise BuildFailed(f"{entry.name}: {complaint.group(0).strip()}")
    return resources


def describe_built(built: Sequence[Built]) -> list[dict[str, object]]:
    """The rows of build.json, one for each kernel."""
    return [
        {
            "kernel": one.name,
            "seconds": round(one.seconds, 4),
            "cached": one.cached,
            "registers": one.resources.registers if one.resources else None,
            "spill_bytes": one.resources.spill_bytes if one.resources else None,
            "shared_bytes": one.shared_bytes,
            "image_bytes": len(one.image),
            "sha256": one.sha256,
        }
        for one in built
    ]


__all__ = ["Built", "Cache", "Resources", "build_all", "build_one", "check_gates", "describe_built", "resources_in"]

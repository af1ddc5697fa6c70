"""Building: what the gates stop, and what the cache keeps."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from kernels.attention.cuda.compile.build import (
    Cache,
    Resources,
    build_all,
    build_one,
    check_gates,
    describe_built,
    resources_in,
)
from kernels.attention.cuda.compile.compiler import Compiled, Target, find_compiler, nvrtc_candidates
from kernels.attention.cuda.plan.variants import CHIPS, Combine, Kernel, Tile, kernel_table
from kernels.attention.interface import BuildFailed

TURING, _, ADA, HOPPER = CHIPS
LOG = """ptxas info    : Compiling entry function 'k' for 'sm_90'
ptxas info    : Function properties for k
    {stack} bytes stack frame, {stores} bytes spill stores, {loads} bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers
"""


@dataclasses.dataclass
class Recorder:
    """A compiler that compiles nothing: it counts what it is asked for and answers with a given log."""

    log: str = LOG.format(stack=0, stores=0, loads=0)
    version: str = "13.0"
    name: str = "recorder"
    asked: int = 0

    def compile(self, sources: Sequence[str], headers: Mapping[str, str], target: Target) -> list[Compiled]:
        self.asked += len(sources)
        return [Compiled(f"{target.name}{source}".encode(), self.log, 0.5) for source in sources]


def test_a_kernel_that_spills_fails_the_build(tmp_path: Path) -> None:
    for counts in (
        {"stack": 0, "stores": 8, "loads": 0},
        {"stack": 0, "stores": 0, "loads": 4},
        {"stack": 16, "stores": 0, "loads": 0},
    ):
        with pytest.raises(BuildFailed, match="spills"):
            build_one(Combine("float16"), Target("sm_90"), Recorder(LOG.format(**counts)), Cache(tmp_path))
    assert list(tmp_path.iterdir()) == [], "a kernel that failed its gate was cached"


def test_a_log_without_a_resource_report_fails_the_build(tmp_path: Path) -> None:
    with pytest.raises(BuildFailed, match="resource report"):
        build_one(Combine("float16"), Target("sm_90"), Recorder("fine"), Cache(tmp_path))


def test_a_kernel_larger_than_the_chips_shared_memory_fails_the_build() -> None:
    kernel = Kernel("float16", 128, False, True, Tile(128, 128, 8, 1, False))
    check_gates(kernel, ADA, Resources(255, 0, 0))
    with pytest.raises(BuildFailed, match="shared memory"):
        check_gates(kernel, TURING, Resources(255, 0, 0))


def test_a_second_build_is_served_from_the_cache(tmp_path: Path) -> None:
    entries, compiler = list(kernel_table(TURING)), Recorder()
    first = build_all(entries, Target("sm_75"), compiler, Cache(tmp_path))
    second = build_all(entries, Target("sm_75"), compiler, Cache(tmp_path))
    assert compiler.asked == len(entries)
    assert [one.image for one in first] == [one.image for one in second]
    assert not any(one.cached for one in first)
    assert all(one.cached for one in second)


def test_another_compiler_target_or_kernel_is_built_anew(tmp_path: Path) -> None:
    compiler, cache = Recorder(), Cache(tmp_path)
    build_one(Combine("float16"), Target("sm_90"), compiler, cache)
    for entry, target, version in (
        (Combine("float16"), Target("sm_89"), "13.0"),
        (Combine("float16"), Target("sm_90"), "13.1"),
        (Combine("bfloat16"), Target("sm_90"), "13.0"),
    ):
        before = compiler.asked
        compiler.version = version
        assert not build_one(entry, target, compiler, cache).cached
        assert compiler.asked == before + 1


def test_a_damaged_cache_entry_is_built_anew(tmp_path: Path) -> None:
    compiler, cache, entry, target = Recorder(), Cache(tmp_path), Combine("float16"), Target("sm_90")
    build_one(entry, target, compiler, cache)
    path = cache.path(entry, target, compiler)
    for damage in (b"half", None):
        if damage is None:
            path.with_suffix(".json").write_text("{")
        else:
            path.write_bytes(damage)
        assert not build_one(entry, target, compiler, cache).cached
        assert build_one(entry, target, compiler, cache).cached


def test_a_cache_that_cannot_be_written_does_not_fail_the_build(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    built = build_one(Combine("float16"), Target("sm_90"), Recorder(), Cache(tmp_path / "file" / "cache"))
    assert built.image


def test_the_build_record_names_every_kernels_resources(tmp_path: Path) -> None:
    entries = list(kernel_table(HOPPER))
    rows = describe_built(build_all(entries, Target("sm_90"), Recorder(), Cache(tmp_path)))
    assert [row["kernel"] for row in rows] == [entry.name for entry in entries]
    for row in rows:
        assert row["registers"] == 255
        assert row["spill_bytes"] == 0
        assert len(str(row["sha256"])) == 64
    json.dumps(rows)


def test_without_any_compiler_the_failure_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if nvrtc_candidates() or any(Path("/usr/local").glob("cuda*/bin/nvcc")):
        pytest.skip("a compiler is installed outside PATH")
    with pytest.raises(BuildFailed) as failure:
        find_compiler()
    assert failure.value.cause == "no_compiler"
    assert "NVRTC" in failure.value.remedy


@pytest.mark.parametrize("name", ["sm_9", "sm90", "compute", "sm_90b", ""])
def test_a_malformed_target_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="no such target"):
        Target(name)


def test_the_resource_report_is_read_as_ptxas_writes_it() -> None:
    assert resources_in(LOG.format(stack=16, stores=12, loads=20)) == Resources(255, 32, 16)

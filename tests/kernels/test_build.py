"""Building the CPU kernel: cached by what it depends on, healed when the cache is damaged, explained when it fails."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from kernels.attention import registry
from kernels.attention.cpu.compile import SOURCES, build_library, find_compiler
from kernels.attention.cpu.kernel import CpuAttention, torch_openmp
from kernels.attention.interface import BuildFailed, Unavailable
from tests.kernels.harness_process import run_forked

ROOT = Path(__file__).resolve().parents[2]


def program(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def failure(environ: Mapping[str, str], tmp_path: Path) -> BuildFailed:
    with pytest.raises(BuildFailed) as told:
        build_library(tmp_path / "out", tmp_path / "cache", environ=environ)
    return told.value


def test_a_second_build_comes_from_the_cache_and_is_the_same_library(
    kernel: CpuAttention, kernel_cache: Path, tmp_path: Path
) -> None:
    first, second = build_library(tmp_path, kernel_cache), build_library(tmp_path, kernel_cache)
    assert first.record.cached
    assert second.record.cached
    assert first.library == second.library
    assert first.record.artifact_sha256 == hashlib.sha256(second.library.read_bytes()).hexdigest()


def test_the_record_names_compiler_flags_and_hashes(kernel: CpuAttention, kernel_cache: Path, tmp_path: Path) -> None:
    record = build_library(tmp_path, kernel_cache).record.as_json()
    wanted = "schema implementation compiler compiler_version flags seconds cached source_sha256 artifact_sha256"
    assert set(wanted.split()) <= set(record)
    assert record["implementation"] == "bench"
    assert "-O3" in record["flags"]
    assert record["compiler_version"] in find_compiler().version


def test_a_damaged_library_in_the_cache_is_built_again(
    kernel: CpuAttention, kernel_cache: Path, tmp_path: Path
) -> None:
    library = build_library(tmp_path, kernel_cache).library
    own = tmp_path / "cache"
    own.mkdir()
    shutil.copy(library.with_suffix(".sha256"), own)
    (own / library.name).write_bytes(library.read_bytes()[:-100])
    healed = build_library(tmp_path, own)
    assert not healed.record.cached
    assert build_library(tmp_path, own).record.cached


def test_a_sealed_library_that_does_not_load_is_built_again(
    kernel: CpuAttention, kernel_cache: Path, tmp_path: Path
) -> None:
    name = build_library(tmp_path, kernel_cache).library.name
    own = tmp_path / "cache"
    own.mkdir()
    (own / name).write_bytes(b"not a library")
    (own / name).with_suffix(".sha256").write_text(hashlib.sha256(b"not a library").hexdigest())
    healed = CpuAttention()
    assert not healed.build(tmp_path, own).cached
    x = torch.ones(1, 1, 1, 4)
    assert torch.equal(healed.run(x, x, x, causal=False), x)


def test_without_a_compiler_the_failure_says_how_to_get_one(tmp_path: Path) -> None:
    told = failure({"PATH": str(tmp_path)}, tmp_path)
    assert told.cause == "no_compiler"
    assert "g++" in str(told)
    assert "apt-get install g++" in told.remedy


def test_a_named_compiler_that_is_not_there_is_not_replaced_in_silence(tmp_path: Path) -> None:
    told = failure({**os.environ, "CXX": "no-such-compiler"}, tmp_path)
    assert told.cause == "no_compiler"
    assert "CXX=no-such-compiler" in str(told)


def test_a_failing_compiler_is_quoted_and_leaves_nothing_in_the_cache(tmp_path: Path) -> None:
    broken = program(
        tmp_path / "broken-g++",
        '#!/bin/sh\n[ "$1" = --version ] && { echo "broken 1.0"; exit 0; }\necho "error: out of registers" >&2\nexit 3\n',
    )
    told = failure({**os.environ, "CXX": str(broken)}, tmp_path)
    assert told.cause == "build_failed"
    assert "broken 1.0 exited with 3" in str(told)
    assert "error: out of registers" in str(told)
    assert list((tmp_path / "cache").iterdir()) == []
    assert "out of registers" in (tmp_path / "out" / "build-cpu.log").read_text()


def test_a_compiler_that_writes_nothing_has_failed(tmp_path: Path) -> None:
    idle = program(tmp_path / "idle-g++", "#!/bin/sh\necho idle 1.0\n")
    assert "exited with 0" in str(failure({**os.environ, "CXX": str(idle)}, tmp_path))


def test_compilers_that_differ_never_share_a_library(kernel: CpuAttention, kernel_cache: Path, tmp_path: Path) -> None:
    real = find_compiler().command[0]
    other = program(
        tmp_path / "other-g++",
        f'#!/bin/sh\n[ "$1" = --version ] && {{ echo "other 1.0"; exit 0; }}\nexec {real} "$@"\n',
    )
    built = build_library(tmp_path, kernel_cache, environ={**os.environ, "CXX": str(other)})
    assert built.library != build_library(tmp_path, kernel_cache).library


def test_an_unwritable_cache_is_a_build_failure_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the directory should be")
    told = failure(os.environ, tmp_path)
    assert "BENCH_KERNEL_CACHE" in told.remedy


def test_the_kernel_borrows_the_openmp_threads_that_pytorch_has() -> None:
    maps = Path("/proc/self/maps").read_text()
    assert (torch_openmp() is not None) == ("libgomp" in maps)


def test_the_registry_picks_by_device_and_names_what_is_missing() -> None:
    assert isinstance(registry.find_kernel(torch.device("cpu"), threads=1), CpuAttention)
    with pytest.raises(Unavailable, match="no bundled kernel for device type meta"):
        registry.find_kernel(torch.device("meta"))


def test_a_payload_without_cuda_sources_says_so(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "kernels", tmp_path / "kernels", ignore=shutil.ignore_patterns("cuda", "__pycache__"))
    (tmp_path / "finding.py").write_text(
        "import torch; from kernels.attention import registry\n"
        "try: registry.find_kernel(torch.device('cuda', 0))\n"
        "except Exception as exc: print(type(exc).__name__, exc)"
    )
    said = run_forked("finding", cwd=tmp_path, environ={**os.environ, "PYTHONPATH": ""})
    assert said.stdout.strip() == (
        "Unavailable no bundled kernel for cuda: the payload has no module kernels.attention.cuda"
    ), said.stderr


def test_every_source_file_counts_towards_the_hash() -> None:
    here = {path.name for path in (ROOT / "kernels" / "attention" / "cpu").iterdir() if path.suffix in {".cpp", ".h"}}
    assert here == set(SOURCES)

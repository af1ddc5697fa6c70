"""Laws of the compiler that the machines of a test session share: what it keeps is what the real one gives."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.compiler_cache import MARK

pytestmark = pytest.mark.skipif(MARK not in os.environ, reason="there is no g++, or no flock")


def compiled(folder: Path, text: str) -> tuple[int, bytes]:
    folder.mkdir()
    (folder / "attention.cpp").write_text('#include "pool.h"\n' + text)
    (folder / "pool.h").write_text("#define FACTOR 2\n")
    out = folder / "out.so"
    done = subprocess.run(
        ["g++", "-O1", "-fPIC", "-shared", "-o", str(out), str(folder / "attention.cpp")], capture_output=True
    )
    return done.returncode, out.read_bytes() if out.exists() else b""


def kept() -> int:
    return len(list((Path(os.environ[MARK]) / "kept").glob("[0-9a-f]*[0-9a-f]")))


def test_the_same_source_is_compiled_once_and_gives_what_the_real_compiler_gives(tmp_path: Path) -> None:
    text = f"int answer() {{ return FACTOR * {os.getpid()}; }}\n"
    before = kept()
    first, again = compiled(tmp_path / "a", text), compiled(tmp_path / "b", text)
    assert first == again
    assert kept() == before + 1
    real = shutil.which("g++", path=os.environ["PATH"].partition(os.pathsep)[2])
    assert real is not None
    source, out = tmp_path / "a" / "attention.cpp", tmp_path / "real.so"
    subprocess.run([real, "-O1", "-fPIC", "-shared", "-o", str(out), str(source)], check=True)
    assert out.read_bytes() == first[1]


def test_another_source_is_compiled_and_a_failure_is_never_kept(tmp_path: Path) -> None:
    text = f"int other() {{ return {os.getpid()}; }}\n"
    assert compiled(tmp_path / "a", text)[1] != compiled(tmp_path / "b", text + "int more() { return FACTOR; }\n")[1]
    before = kept()
    for name in ("c", "d"):
        code, library = compiled(tmp_path / name, f"int broken{os.getpid()}() {{ return nothing; }}\n")
        assert code != 0
        assert library == b""
    assert kept() == before

"""Hosts that are reached and will not do: refused before anything is held, with what to do about it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.cli.conftest import Bench
from tests.integration.hosts.conftest import Client, Start, base_python, with_stand_ins
from tests.support.sshd import Sshd

pytestmark = pytest.mark.usefixtures("cloud")

TOOLS = (
    "sh", "bash", "curl", "tar", "sha256sum", "gzip", "date", "ls", "cat", "rm", "mkdir", "sleep", "tee", "sed", "grep",
)  # fmt: skip


def path_of(folder: Path, *without: str) -> str:
    """A PATH with python and what a run uses, but for some of it."""
    base_python(folder)
    for tool in TOOLS:
        found = shutil.which(tool)
        if found and tool not in without:
            (folder / tool).symlink_to(found)
    return str(folder)


@contextmanager
def serving(
    start: Start, client: Client, path: str, *, torch: bool = True, limits: tuple[str, ...] = ()
) -> Iterator[Sshd]:
    with start(environment={"PATH": path}, limits=limits) as server:
        if torch:
            with_stand_ins(server.home)
        client.reaches(server)
        yield server


def refused(bench: Bench, paced: tuple[str, ...], *more: str, code: int = 15) -> str:
    """What a launch says, in one line; nothing was held or recorded for it."""
    said = bench("launch", "--host", "box", *paced, *more, code=code).err
    assert bench("status", "--json").document["runs"] == []
    assert bench("costs", "--json").document["runs"] == []
    return " ".join(said.split())


def test_a_host_without_a_compiler_measures_the_baseline_alone(
    bench: Bench, start: Start, client: Client, tmp_path: Path, paced: tuple[str, ...]
) -> None:
    with serving(start, client, path_of(tmp_path / "path")):
        said = refused(bench, paced)
        assert "box has no C++ compiler" in said
        assert "sudo apt-get install g++" in said
        assert "--baseline-only" in said
        assert bench("plan", "--host", "box", "--baseline-only", *paced, "--json").document["mode"] == "host"


def test_a_host_without_a_tool_of_the_bootstraps_says_which_package_has_it(
    bench: Bench, start: Start, client: Client, tmp_path: Path, paced: tuple[str, ...]
) -> None:
    with serving(start, client, path_of(tmp_path / "path", "curl", "sha256sum")):
        said = refused(bench, paced)
        assert "box has no curl sha256sum" in said
        assert "apt-get install curl coreutils" in said


def test_torch_is_never_installed_on_a_machine_that_is_somebodys(
    bench: Bench, start: Start, client: Client, tmp_path: Path, paced: tuple[str, ...]
) -> None:
    with serving(start, client, base_python(tmp_path / "python"), torch=False) as server:
        said = refused(bench, paced)
        assert "cannot import torch (ModuleNotFoundError" in said
        assert "pip install torch==2.13.0 numpy" in said
        assert "--set host.python=~/bench-venv/bin/python3" in said
        assert not (server.home / ".local").exists()


def test_a_host_with_too_little_room_says_how_much_is_missing(bench: Bench, host: Sshd, paced: tuple[str, ...]) -> None:
    said = refused(bench, paced, "--set", "environment.min_free_gb=1000000")
    assert f"GB free for {host.cache}, and a run needs 1e+06 GB" in said


def test_a_disk_that_fills_during_the_payload_is_reported_and_nothing_stays(
    bench: Bench, start: Start, client: Client, tmp_path: Path, paced: tuple[str, ...]
) -> None:
    # No file of that server's may grow past 32 KiB: less than a payload, and what a quota does.
    path = base_python(tmp_path / "python")
    with serving(start, client, path, limits=("--fsize=71680",)) as server:
        (tmp_path / "paced" / "kernels" / "noise.py").write_text(
            "\n".join(f"# {hash(i * 2654435761)}" for i in range(20000))
        )
        run = bench("launch", "--host", "box", "--json", *paced, "--baseline-only", code=6)
        assert "the disk of box is full: File too large" in " ".join(run.err.split())
        assert list((server.cache / "incoming").iterdir()) == []
        assert bench("costs", "--json").document["runs"][0]["settled_usd"] in ("0", "0.000000")


def test_a_cache_folder_that_cannot_be_made_is_named(bench: Bench, host: Sshd, paced: tuple[str, ...]) -> None:
    (host.home / ".cache").write_text("a file in the way")
    said = refused(bench, paced)
    assert "bench may not write on box: Not a directory" in said
    assert "XDG_CACHE_HOME" in said


def test_a_gpu_that_is_asked_for_and_not_there_is_not_replaced_by_a_processor(
    bench: Bench, host: Sshd, paced: tuple[str, ...]
) -> None:
    said = refused(bench, paced, "--gpu", "l4")
    assert "box has no NVIDIA GPU that answers" in said
    assert "--gpu cpu" in said


@pytest.mark.parametrize("text", ["", "@box", "box:", "box:0", "box:70000", "-oProxyCommand=x", "a b", "[::1"])
def test_what_names_no_host_is_refused_before_anything_is_started(bench: Bench, text: str) -> None:
    said = bench("launch", "--host", text, "--gpu", "cpu", code=2).err
    assert ("is not a host" if text else "--host is empty") in said


def test_a_changed_host_is_validated_again_and_its_builds_are_thrown_away(
    bench: Bench, start: Start, client: Client, tmp_path: Path, paced: tuple[str, ...]
) -> None:
    path = path_of(tmp_path / "path")
    with serving(start, client, path) as server:
        plan = ("plan", "--host", "box", *paced)
        assert "never validated" in bench(*plan, "--baseline-only").out
        assert "validating" not in bench(*plan, "--baseline-only").out
        built = server.cache / "build" / "kernels" / "old.so"
        built.parent.mkdir(parents=True)
        built.touch()
        (Path(path) / "g++").write_text("#!/bin/sh\n[ $# = 1 ] && echo 'g++ 99' && exit\ncp /bin/true \"$3\"\n")
        (Path(path) / "g++").chmod(0o755)
        (Path(path) / "cp").symlink_to("/bin/cp")
        assert "validating box: its compiler changed" in bench(*plan).out
        assert not built.exists()


def test_help_loads_nothing_that_speaks_ssh() -> None:
    import subprocess

    code = "import sys; from orchestrator.cli.app import app; import orchestrator.wiring, orchestrator.cli.launch; print(sorted({'fabric', 'paramiko', 'invoke'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"

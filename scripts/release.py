"""Builds a release and tries it as a stranger would: metadata, contents, an empty environment, `bench demo` there.

make release
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
DIST: Final = ROOT / "dist"
UV: Final = Path(sys.executable).with_name("uv")
NEEDED: Final = (
    "startup/startup.sh", "startup/agent/__main__.py", "kernels/harness/__main__.py", "configs/l4.yaml",
    "configs/demo/softmax.py", "docs/judge.md", "docs/forms/program.md", "revision.json",
)  # fmt: skip
LEFT_TO_A_PERSON: Final = """What remains needs somebody who owns the name `spotbench` on a package index:
  1. there, a trusted publisher for this repository, the workflow release.yml and the environment `release`
  2. the address at which this repository is public, as [project.urls] in pyproject.toml and in README.md
  3. a heading for the version in CHANGELOG.md
  4. git tag v{version} && git push origin v{version}: release.yml tests, builds, signs and publishes"""


def run(*command: object, **options: object) -> None:
    print("$", *command, flush=True)
    subprocess.run([str(word) for word in command], check=True, **options)  # type: ignore[call-overload]


def faults_of(wheel: Path) -> list[str]:
    """What is wrong with the contents and metadata of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        text = archive.read(metadata).decode()
    faults = [f"{name} is missing" for name in NEEDED if f"orchestrator/_bundle/{name}" not in names]
    faults += [f"{name} does not belong here" for name in names if re.search(r"(^|/)tests/|\\.pyc$|\\.so$", name)]
    faults += [] if wheel.name.endswith("-py3-none-any.whl") else [f"{wheel.name} is for one platform only"]
    faults += [f"no {field}" for field in ("License-Expression", "Author", "Summary") if f"\n{field}: " not in text]
    return faults


def try_installed(wheel: Path, torch: str) -> None:
    """Install the wheel into an empty environment, and measure there, away from the checkout."""
    with tempfile.TemporaryDirectory(prefix="bench-release-") as folder:
        home = Path(folder)
        run(UV, "venv", "--quiet", "--python", sys.executable, home / "env")
        run(UV, "pip", "install", "--quiet", "--python", home / "env/bin/python", wheel, torch)
        environment = {**os.environ, "BENCH_HOME": str(home / "home"), "PYTHONPATH": ""}
        for command in (["--version"], ["docs", "judge"], ["demo"], ["cloud", "stop"]):
            for alias in ("bench", "spotbench")[: 2 if command == ["--version"] else 1]:
                run(home / "env/bin" / alias, *command, cwd=home, env=environment)


def main() -> None:
    torch = sys.argv[1] if len(sys.argv) > 1 else "torch"
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", DIST, ROOT)
    (wheel,) = DIST.glob("*.whl")
    if faults := faults_of(wheel):
        sys.exit("\n".join(f"{wheel.name}: {fault}" for fault in faults))
    run(UV, "tool", "run", "twine", "check", "--strict", *sorted(DIST.iterdir()))
    try_installed(wheel, torch)
    print(LEFT_TO_A_PERSON.format(version=wheel.name.split("-")[1]))


if __name__ == "__main__":
    main()

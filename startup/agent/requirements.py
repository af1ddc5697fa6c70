"""Provides what a user's own workload needs beside torch: packages for pip, packages for apt, a build command.

The payload lists them, so that its checksum covers what is installed. Packages go into a separate environment for the
workload. It is kept under a name that depends on its content, and uses the machine's torch. Nothing is installed for a
workload that needs nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from startup.agent.clock import Patience
from startup.agent.diagnosis import Halt, halt_for
from startup.agent.host import CompletedCommand, LocalHost
from startup.agent.packages import Packages

TOLD = "own.requirements.json"
RECORD = "requirements.json"
PARENT = """
import json, sys, sysconfig
import importlib.metadata as known
def version(name):
    try:
        return known.version(name)
    except known.PackageNotFoundError:
        return ""
print(json.dumps({
    "python": sys.version.split()[0], "platform": sysconfig.get_platform(),
    "site": sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}),
    "torch": version("torch"), "numpy": version("numpy"),
}))
"""
PINNED = ("torch", "numpy")
"""Packages that all implementations use, so that no workload may replace them."""


@dataclass(frozen=True)
class RequirementList:
    """What a workload needs. `pip` holds requirements, or names of wheels beside the workload; `build` is a command for
    /bin/sh."""

    pip: tuple[str, ...] = ()
    apt: tuple[str, ...] = ()
    build: str = ""
    build_limit_s: float = 300.0


def read_requirements(payload: Path) -> RequirementList:
    """What the payload lists as needed; nothing where it has no list. Raises Halt where the list cannot be read."""
    try:
        requirements = json.loads((payload / TOLD).read_text(encoding="utf-8"))
        pip, apt = tuple(map(str, requirements["pip"])), tuple(map(str, requirements["apt"]))
        return RequirementList(pip, apt, str(requirements["build"]), float(requirements["build_limit_s"]))
    except FileNotFoundError:
        return RequirementList()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise halt_for("requirements_failed", f"{TOLD} of the payload cannot be read: {error}") from error


class Requirements:
    """Provides what a workload needs, within the phase's patience, and records what was installed."""

    def __init__(self, host: LocalHost, packages: Packages, payload: Path, out: Path) -> None:
        self.host, self.packages = host, packages
        self.own, self.out = payload / "own", out

    def provide(self, wanted: RequirementList, patience: Patience) -> None:
        """Provides everything that is wanted. Raises Halt with `requirements_failed` or `build_failed`."""
        if wanted.apt:
            self.by_apt(wanted.apt, patience)
        if wanted.pip:
            self.by_pip(wanted.pip, patience)
        if wanted.build:
            self.build(wanted.build, wanted.build_limit_s, patience)

    def by_apt(self, names: tuple[str, ...], patience: Patience) -> None:
        """Installs packages of the system where we may change the machine; elsewhere they must be there already."""
        missing = tuple(name for name in names if not self.is_installed(name, patience))
        if not missing:
            return
        if not self.packages.allow_install:
            detail = f"{' '.join(missing)} not installed, and packages may not be installed on this machine"
            raise halt_for("requirements_failed", f"{detail}: sudo apt-get install {' '.join(missing)}")
        ran = self.packages.apt(*missing, patience=patience)
        if not ran.ok:
            raise halt_for("requirements_failed", f"apt could not install {' '.join(missing)}:\n{output_tail(ran)}")

    def is_installed(self, name: str, patience: Patience) -> bool:
        ran = self.host.run("dpkg-query", "-W", "-f", "${Status}", name, patience=patience)
        return ran.ok and "install ok installed" in ran.output

    def by_pip(self, specs: tuple[str, ...], patience: Patience) -> None:
        """Makes an environment with these packages, or finds a kept one; the run goes on in it."""
        ran = self.packages.python("-c", PARENT, patience=patience)
        parent: Mapping[str, Any] = json.loads(ran.output.strip().split("\n")[-1])
        given = [str(self.own / one) if one.endswith(".whl") else one for one in specs]
        hashes = {Path(one).name: wheel_digest(Path(one)) for one in given if one.endswith(".whl")}
        environment_key = {
            "specs": list(specs),
            "wheels": hashes,
            **{key: parent[key] for key in ("python", "platform", *PINNED)},
        }
        key = hashlib.sha256(json.dumps(environment_key, sort_keys=True).encode()).hexdigest()[:16]
        home = environments_folder(self.host.env) / key
        began = self.host.clock.monotonic()
        with hold_lock(home.with_suffix(".lock")):
            done = home / RECORD
            is_installed = done.is_file()
            if not is_installed:
                shutil.rmtree(home, ignore_errors=True)
                try:
                    environment = self.make_environment(home, parent, given, patience)
                except Halt:
                    shutil.rmtree(home, ignore_errors=True)
                    raise
                done.write_text(json.dumps(environment), encoding="utf-8")
            packages = json.loads(done.read_text(encoding="utf-8"))
        self.host.python = str(home / "bin" / "python")
        self.host.prepend("PATH", home / "bin")
        seconds = round(self.host.clock.monotonic() - began, 3)
        record = {
            "schema": 1,
            "environment": key,
            **environment_key,
            "cached": is_installed,
            "seconds": seconds,
            "installed": packages,
        }
        self.out.mkdir(parents=True, exist_ok=True)
        (self.out / RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        how = "kept from before" if is_installed else f"installed in {seconds:.1f} s"
        self.host.log.say(f"the workload's environment {key}: {', '.join(specs)}, {how}")

    def make_environment(
        self, home: Path, parent: Mapping[str, Any], given: list[str], patience: Patience
    ) -> list[dict[str, str]]:
        """Makes a new environment. Returns what pip installed into it, by name, version and hash."""
        ran = self.packages.python("-m", "venv", str(home), patience=patience)
        if not ran.ok:
            raise halt_for("requirements_failed", f"no environment could be made (python3-venv?):\n{output_tail(ran)}")
        (site,) = (home / "lib").glob("python*/site-packages")
        (site / "machine.pth").write_text("".join(f"{one}\n" for one in parent["site"]), encoding="utf-8")
        pinned = home / "pinned.txt"
        pinned.write_text("".join(f"{one}=={parent[one]}\n" for one in PINNED if parent[one]), encoding="utf-8")
        report = home / "report.json"
        options = ("--no-input", "--disable-pip-version-check", "--quiet", "-c", str(pinned), "--report", str(report))
        python = str(home / "bin" / "python")
        self.host.log.say("installing " + " ".join(given))
        ran = self.host.run(python, "-m", "pip", "install", *options, "--", *given, patience=patience)
        if not ran.ok:
            raise halt_for("requirements_failed", f"pip could not install {' '.join(given)}:\n{output_tail(ran)}")
        pip_report = json.loads(report.read_text(encoding="utf-8"))
        return [
            {
                "name": one["metadata"]["name"],
                "version": one["metadata"]["version"],
                "sha256": one.get("download_info", {}).get("archive_info", {}).get("hashes", {}).get("sha256", ""),
            }
            for one in pip_report["install"]
        ]

    def build(self, command: str, limit_s: float, patience: Patience) -> None:
        """Runs the build command in the workload's folder, within its time limit."""
        self.host.log.say(f"building: {command}")
        line = f'cd "$0" && {command}'
        ran = self.host.run("sh", "-c", line, str(self.own), patience=patience, timeout_s=limit_s)
        if not ran.ok:
            how = f"did not end within {limit_s:g} s" if ran.code == 124 else f"ended with exit code {ran.code}"
            raise halt_for("build_failed", f"`{command}` {how}:\n{output_tail(ran)}")


def output_tail(ran: CompletedCommand) -> str:
    """The last lines of a command's output, which say what was wrong."""
    return "\n".join(ran.output.splitlines()[-12:])


def wheel_digest(file: Path) -> str:
    """The sha256 of a wheel. Raises Halt where it is not there."""
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        raise halt_for("requirements_failed", f"{file.name} is not in the payload: {error.strerror}") from error


def environments_folder(env: Mapping[str, str]) -> Path:
    """Where environments are kept on this machine."""
    base = Path(env.get("XDG_CACHE_HOME") or Path(env.get("HOME") or "/root") / ".cache")
    return base / "spotbench" / "environments"


@contextlib.contextmanager
def hold_lock(file: Path) -> Iterator[None]:
    """Holds a lock on a file, so that only one run makes an environment at a time."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)

"""The heals that need packages: pip and venv, torch, numpy."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from startup.agent.clock import Patience
from startup.agent.diagnosis import halt_for
from startup.agent.host import CompletedCommand, LocalHost
from startup.agent.remediation import HealRecord, disk_space, driver_version, package_lists

# The oldest driver branch that serves a torch release's default wheel, by the CUDA release that wheel is built for
# (CUDA 13.0: 580, 12.8: 570, 12.6: 560, 12.4: 550, 12.1: 530, after NVIDIA's CUDA release notes), newest first.
TORCH_NEEDS_DRIVER = (
    ((2, 11), "", 580),
    ((2, 8), "2.10.0", 570),
    ((2, 7), "2.7.1", 560),
    ((2, 5), "2.6.0", 550),
    ((2, 1), "2.4.1", 530),
)

PROBE = """
import json, sys, warnings
warnings.simplefilter("ignore")
found = {"torch": None, "cuda": None, "usable": False, "numpy": None, "exchange": False, "error": ""}
try:
    import torch
    found["torch"], found["cuda"] = torch.__version__, torch.version.cuda
    found["usable"] = bool(torch.cuda.is_available())
except Exception as error:
    found["error"] = "%s: %s" % (type(error).__name__, error)
try:
    import numpy
    found["numpy"] = numpy.__version__
    if found["torch"]:
        torch.from_numpy(numpy.zeros(1)); torch.zeros(1).numpy()
        found["exchange"] = True
except Exception as error:
    found["error"] = found["error"] or "%s: %s" % (type(error).__name__, error)
print("\\n" + json.dumps(found))
"""


@dataclass(frozen=True)
class Torch:
    """What a fresh interpreter finds: versions (None: not there), whether CUDA is usable, whether numpy fits."""

    torch: str | None
    cuda: str | None
    usable: bool
    numpy: str | None
    exchange: bool
    error: str


class CannotInstall(Exception):
    """A package could not be installed; says which, and the installer's last line."""


class Packages:
    """Finds and installs Python packages with the tools of the image. `record` is called for every heal."""

    def __init__(
        self, host: LocalHost, allow_install: bool, min_free_gb: float, record: Callable[[HealRecord], None]
    ) -> None:
        self.host = host
        self.allow_install = allow_install
        self.min_free_gb = min_free_gb
        self.record = record
        self.venv: Path | None = None
        """The folder for a venv; None for the run's own folder, which no image keeps."""

    def probe(self, patience: Patience) -> Torch:
        """Imports torch and numpy in a new interpreter, as one that has failed to import them cannot try again."""
        ran = self.python("-c", PROBE, patience=patience)
        for line in reversed(
            ran.output.splitlines()
        ):  # libraries print lines of their own, some of them when they are unloaded
            try:
                return Torch(**json.loads(line))
            except (ValueError, TypeError):
                continue
        return Torch(None, None, False, None, False, f"the probe ended with exit code {ran.code}: {ran.last_line}")

    def torch(self, wanted: str, require_cuda: bool, patience: Patience, there: Torch | None = None) -> Torch:
        """A torch that can be used: that of the image if it works (`there`, where that is known), else `wanted`, else
        the newest that the driver supports."""
        probe = there or self.probe(patience)
        if suits_torch(probe, require_cuda):
            return probe
        cause, detail = self.explain(probe, patience)
        if not self.allow_install:
            raise halt_for(cause, f"{detail}; nothing may be installed")
        version = self.choose(wanted, require_cuda, patience)
        try:
            self.install(f"torch=={version}" if version else "torch", "numpy", patience=patience)
        except CannotInstall as error:
            raise halt_for(cause, f"{detail}; {error}") from error
        probe = self.probe(patience)
        if not suits_torch(probe, require_cuda):
            cause, detail = self.explain(probe, patience)
            raise halt_for(cause, f"{detail}, although torch {version} was just installed")
        self.record(HealRecord("torch", f"{detail}; installed {probe.torch}"))
        return probe

    def numpy(self, found: Torch, patience: Patience) -> None:
        """Provides a numpy that can exchange arrays with this torch, as an older torch was built for numpy 1."""
        if found.exchange:
            return
        detail = f"numpy {found.numpy or 'is absent and'} does not fit torch {found.torch}: {found.error}"
        if not self.allow_install:
            raise halt_for("numpy_mismatch", f"{detail}; nothing may be installed")
        requirement = "numpy<2" if found.numpy and not found.numpy.startswith("1.") else "numpy"
        try:
            self.install(requirement, patience=patience)
        except CannotInstall as error:
            raise halt_for("numpy_mismatch", f"{detail}; {error}") from error
        healed = self.probe(patience)
        if not healed.exchange:
            raise halt_for("numpy_mismatch", f"{detail}; with numpy {healed.numpy} it is: {healed.error}")
        self.record(HealRecord("numpy", f"{detail}; installed {healed.numpy}"))

    def explain(self, found: Torch, patience: Patience) -> tuple[str, str]:
        """The cause, and a sentence, for a torch that cannot be used."""
        if found.torch is None:
            return "torch_missing", f"torch cannot be imported ({found.error})"
        if found.cuda is None:
            return "torch_without_cuda", f"torch {found.torch} is built without CUDA"
        driver = driver_version(self.host, patience)
        if driver is None:
            return "no_cuda", "the NVIDIA driver does not answer"
        if major_version(driver) < needed_driver(found.torch):
            return "driver_too_old", f"torch {found.torch} (CUDA {found.cuda}) needs a newer driver than {driver}"
        return "no_cuda", f"torch {found.torch} (CUDA {found.cuda}) finds no usable GPU with driver {driver}"

    def choose(self, wanted: str, require_cuda: bool, patience: Patience) -> str:
        """The torch to install: `wanted` if the driver supports it, else the newest that it supports."""
        driver = driver_version(self.host, patience) if require_cuda else None
        if driver is None or major_version(driver) >= needed_driver(wanted):
            return wanted
        for _, version, branch in TORCH_NEEDS_DRIVER:
            if version and major_version(driver) >= branch:
                self.host.log.say(f"driver {driver} is too old for torch {wanted}: taking {version}")
                return version
        raise halt_for("driver_too_old", f"no known torch runs with driver {driver}; torch {wanted} needs a newer one")

    def install(self, *requirements: str, patience: Patience) -> None:
        """Installs with pip, which is installed first if needed; into a venv if the system's Python refuses."""
        self.ensure_pip(patience)
        ran = self.pip_install(requirements, patience)
        if not ran.ok and "externally-managed-environment" in ran.output:
            self.make_venv(patience)
            ran = self.pip_install(requirements, patience)
        if not ran.ok and "No space left on device" in ran.output:
            healed = disk_space(self.host, self.min_free_gb, True, patience)
            if healed:
                self.record(healed)
                ran = self.pip_install(requirements, patience)
        if not ran.ok:
            raise CannotInstall(f"pip could not install {' '.join(requirements)}: {ran.last_line}")

    def pip_install(self, requirements: tuple[str, ...], patience: Patience) -> CompletedCommand:
        self.host.log.say("installing " + " ".join(requirements))
        options = ("--no-input", "--disable-pip-version-check", "--no-cache-dir", "--quiet")
        return self.python("-m", "pip", "install", *options, *requirements, patience=patience)

    def ensure_pip(self, patience: Patience) -> None:
        if self.python("-m", "pip", "--version", patience=patience).ok:
            return
        self.python("-m", "ensurepip", "--upgrade", patience=patience)
        if self.python("-m", "pip", "--version", patience=patience).ok:
            self.record(HealRecord("pip", "installed by ensurepip"))
            return
        last = self.apt("python3-pip", "python3-venv", patience=patience)
        if not self.python("-m", "pip", "--version", patience=patience).ok:
            raise CannotInstall(f"there is no pip, and neither ensurepip nor apt could install it: {last.last_line}")
        self.record(HealRecord("pip", "installed by apt"))

    def make_venv(self, patience: Patience) -> None:
        """Moves the run into a venv that still sees the image's own packages."""
        home = self.venv or self.host.home / "venv"
        command = ("-m", "venv", "--system-site-packages", str(home))
        if not self.python(*command, patience=patience).ok:
            self.apt("python3-venv", patience=patience)
            ran = self.python(*command, patience=patience)
            if not ran.ok:
                raise CannotInstall(f"the system's Python is externally managed, and no venv: {ran.last_line}")
        self.host.python = str(home / "bin" / "python")
        self.record(HealRecord("python_venv", f"the system's Python is externally managed; using {home}"))

    def apt(self, *names: str, patience: Patience) -> CompletedCommand:
        self.host.env["DEBIAN_FRONTEND"] = "noninteractive"
        lock = ("-o", "DPkg::Lock::Timeout=120")
        package_lists(self.host, patience)
        return self.host.run("apt-get", *lock, "-qq", "-y", "install", *names, patience=patience)

    def python(self, *arguments: str, patience: Patience) -> CompletedCommand:
        return self.host.run(self.host.python, *arguments, patience=patience)


def suits_torch(found: Torch, require_cuda: bool) -> bool:
    return found.torch is not None and (found.usable or not require_cuda)


def major_version(version: str) -> int:
    """580 for driver `580.95.05`; 0 for what is not a version."""
    digits = version.split(".")[0]
    return int(digits) if digits.isdigit() else 0


def needed_driver(torch: str) -> int:
    """The oldest driver branch for a torch version; for an unknown or an empty one, that of the newest known."""
    parts = torch.split("+")[0].split(".")
    release = (int(parts[0]), int(parts[1])) if len(parts) >= 2 and parts[0].isdigit() and parts[1].isdigit() else None
    for since, _, branch in TORCH_NEEDS_DRIVER:
        if release is None or release >= since:
            return branch
    return TORCH_NEEDS_DRIVER[-1][2]

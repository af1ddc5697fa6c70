"""Runs the agent in a container: the same agent, in the image that the run names, on the rented machine.

The image is fetched by its digest. Then the agent's process is replaced by the one that runs the container, so signals,
exit code and log are the container's. Folder, network and processes are those of the machine, so the bootstrap's
watchdog, the metadata server and the bucket work as without a container.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from startup.agent.clock import Patience
from startup.agent.diagnosis import halt_for
from startup.agent.host import CompletedCommand, LocalHost
from startup.agent.remediation import package_lists

NAME = "bench"
INSIDE = "BENCH_CONTAINER"
"""The environment variable that is set in the container: the image of the container."""
REFERENCE = re.compile(r"[a-z0-9][a-z0-9._/:-]{0,254}@sha256:[0-9a-f]{64}\Z", re.ASCII)
GOOGLE = re.compile(r"(?:[a-z0-9-]+-docker\.pkg\.dev|(?:[a-z]+\.)?gcr\.io)/")
"""Registries that accept the machine's own token."""
PASSED = ("BENCH_REBOOT", "GCE_METADATA_HOST", "GCE_METADATA_IP", "BENCH_REQUEST_TIMEOUT_S", "PYTHONUNBUFFERED")


class Container:
    """Fetches an image and gives the command that runs it."""

    def __init__(self, host: LocalHost, reference: str, home: Path, gpu: bool, allow_install: bool) -> None:
        self.host, self.reference, self.home, self.gpu = host, reference, home, gpu
        self.allow_install = allow_install

    def fetch(self, token: str, patience: Patience) -> None:
        """Fetches the image to this machine. Raises Halt with `container_unavailable`."""
        if not REFERENCE.match(self.reference):
            raise halt_for("container_unavailable", f"{self.reference} is not pinned by a digest")
        self.engine(patience)
        registry = self.reference.partition("/")[0]
        if GOOGLE.match(self.reference) and token:
            login = ("sh", "-c", 'printf %s "$BENCH_TOKEN" | docker login -u oauth2accesstoken --password-stdin "$0"')
            self.host.env["BENCH_TOKEN"] = token
            try:
                self.require_success(
                    self.host.run(*login, f"https://{registry}", patience=patience), f"log in at {registry}"
                )
            finally:
                del self.host.env["BENCH_TOKEN"]
        began = self.host.clock.monotonic()
        self.require_success(self.host.run("docker", "pull", "--quiet", self.reference, patience=patience), "fetch it")
        self.host.log.say(f"{self.reference} fetched in {self.host.clock.monotonic() - began:.1f} s")

    def engine(self, patience: Patience) -> None:
        """Provides a container engine that can use the GPU: the one that is there, or a new one where we may install
        it."""
        if self.host.which("docker") is None and self.allow_install:
            self.host.env["DEBIAN_FRONTEND"] = "noninteractive"
            lock = ("-o", "DPkg::Lock::Timeout=120", "-qq")
            package_lists(self.host, patience)
            self.host.run("apt-get", *lock, "-y", "install", "docker.io", patience=patience)
            if self.gpu:
                self.host.run("nvidia-ctk", "runtime", "configure", "--runtime=docker", patience=patience)
                self.host.run("systemctl", "restart", "docker", patience=patience)
        if self.host.which("docker") is None:
            raise halt_for("container_unavailable", "there is no docker on this machine, and none could be installed")

    def require_success(self, ran: CompletedCommand, what: str) -> None:
        if not ran.ok:
            tail = "\n".join(ran.output.splitlines()[-6:])
            raise halt_for("container_unavailable", f"{self.reference}: could not {what}: {tail or ran.last_line}")

    def command(self, payload: Path, environ: Mapping[str, str]) -> list[str]:
        """The command that replaces this process."""
        passed = {key: environ[key] for key in PASSED if key in environ}
        passed |= {"BENCH_VM_DIR": str(self.home), "HOME": str(self.home), INSIDE: self.reference}
        gpu = ["--gpus", "all", "--cap-add", "SYS_ADMIN"] if self.gpu else []
        return [
            "docker", "run", "--rm", "--init", "--name", NAME, "--network", "host", "--pid", "host", "--ipc", "host",
            "--ulimit", "memlock=-1", *gpu, "--volume", f"{self.home}:{self.home}", "--workdir", str(payload),
            *(part for key, value in sorted(passed.items()) for part in ("--env", f"{key}={value}")),
            self.reference, "python3", "-m", "startup.agent",
        ]  # fmt: skip

"""A stand-in for `docker` on a machine of the embedded cloud: it accepts the flags that a run needs and refuses others.

There is no registry: a reference to `embedded.local/` means this host's file system. It is read-only, in a mount
namespace with its own `/tmp`, and only the given volumes can be written. The environment of the running Python is part
of the image, wherever it is. Environment variables and working folder come only from the flags. If the host allows no
namespaces, only the environment variables are separate.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

PINNED = re.compile(r"embedded\.local/[a-z0-9._/:-]+@sha256:[0-9a-f]{64}", re.ASCII)
VALUED = {
    "--name", "--network", "--pid", "--ipc", "--ulimit", "--volume", "--workdir", "--env", "--gpus", "--cap-add",
}  # fmt: skip
PLAIN = {"--rm", "--init"}
REFUSED = 125
"""The exit code of docker if docker itself failed."""
MOUNTS = """set -e
mount -t tmpfs none /mnt
number=0
for volume in $BENCH_VOLUMES $BENCH_PYTHON; do
  number=$((number + 1)); mkdir /mnt/$number; mount --bind "$volume" /mnt/$number
done
mount -t tmpfs none /tmp
number=0
for volume in $BENCH_VOLUMES $BENCH_PYTHON; do
  number=$((number + 1)); mkdir -p "$volume"; mount --bind /mnt/$number "$volume"
done
umount -R /mnt
mount --bind / / || true
mount -o remount,bind,ro /
[ -z "$BENCH_PYTHON" ] || mount -o remount,bind,ro "$BENCH_PYTHON"
unset BENCH_VOLUMES BENCH_PYTHON
cd "$BENCH_WORKDIR"; unset BENCH_WORKDIR
exec "$@"
"""


class DockerRefusal(Exception):
    """An error message of docker, with the exit code that docker would use."""

    def __init__(self, words: str, code: int = REFUSED) -> None:
        super().__init__(words)
        self.code = code


@dataclass
class Flags:
    """The values of each flag of `docker run`, by name, and the arguments after the flags."""

    flags: dict[str, list[str]] = field(default_factory=dict)
    rest: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, words: Sequence[str]) -> Flags:
        flags, unread_words = cls(), list(words)
        while unread_words and unread_words[0].startswith("-"):
            name, given, value = unread_words.pop(0).partition("=")
            if name in PLAIN:
                flags.flags.setdefault(name, [])
            elif name in VALUED and (given or unread_words):
                flags.flags.setdefault(name, []).append(value if given else unread_words.pop(0))
            else:
                raise DockerRefusal(f"unknown flag: {name}")
        flags.rest = unread_words
        return flags

    def one(self, name: str) -> str:
        return self.flags.get(name, [""])[-1]


def known_reference(reference: str) -> str:
    if not PINNED.fullmatch(reference):
        raise DockerRefusal(f"Error response from daemon: manifest for {reference} not found: manifest unknown", 1)
    return reference


def references_file() -> Path:
    """The file with the references that were pulled, one on each line."""
    return Path.home() / ".docker-stand-in"


def pull_image(words: Sequence[str]) -> int:
    reference = known_reference(words[-1])
    with references_file().open("a") as pulled:
        pulled.write(reference + "\n")
    sys.stdout.write(reference + "\n")
    return 0


def hidden_python() -> str:
    """The folder of this Python's environment if it is in `/tmp`, where the container's own `/tmp` would hide it; else
    empty."""
    folder = Path(sys.executable).parent.parent
    return str(folder) if folder.is_relative_to("/tmp") else ""


def run_image(words: Sequence[str]) -> int:
    """Replaces this process by the command. Raises `Refusal` if docker would refuse the flags."""
    flags = Flags.read(words)
    if not flags.rest:
        raise DockerRefusal("docker run requires at least 1 argument")
    reference, command = known_reference(flags.rest[0]), flags.rest[1:]
    if not references_file().is_file() or reference not in references_file().read_text().split():
        raise DockerRefusal(f"Unable to find image '{reference}' locally")
    if "--gpus" in flags.flags:
        raise DockerRefusal('could not select device driver "" with capabilities: [[gpu]]')
    for name in ("--network", "--pid", "--ipc"):
        if flags.one(name) != "host":
            raise DockerRefusal(f"{name} {flags.one(name) or 'bridge'}: this stand-in has the machine's own alone")
    volumes = [one.partition(":")[0] for one in flags.flags.get("--volume", [])]
    environ = dict(one.partition("=")[::2] for one in flags.flags.get("--env", []))
    environ.setdefault("PATH", f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin")
    workdir = flags.one("--workdir") or "/"
    inner = environ | {"BENCH_VOLUMES": " ".join(volumes), "BENCH_PYTHON": hidden_python(), "BENCH_WORKDIR": workdir}
    unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    wrapped = [*unshare, "sh", "-c", MOUNTS, "docker"]
    if subprocess.run([*wrapped, "true"], env=inner, capture_output=True, check=False).returncode == 0:
        os.execvpe(wrapped[0], [*wrapped, *command], inner)
    os.chdir(workdir)
    os.execvpe(command[0], command, environ)


def main(words: Sequence[str]) -> int:
    try:
        match words:
            case ["pull", *rest] if rest:
                return pull_image(rest)
            case ["run", *rest]:
                return run_image(rest)
            case ["rm", "--force", _] | ["login", *_]:
                return 0
            case _:
                raise DockerRefusal(f"docker: '{' '.join(words[:1])}' is not a docker command", 1)
    except DockerRefusal as refusal:
        sys.stderr.write(f"docker: {refusal}\n")
        return refusal.code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

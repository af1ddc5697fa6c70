"""Containers: which references may be run, and the recipe of a container with the contents of a prepared image.
Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

REFERENCE: Final = re.compile(r"[a-z0-9][a-z0-9._/:-]{0,254}@sha256:[0-9a-f]{64}", re.ASCII)
HINT: Final = "`docker buildx imagetools inspect NAME:TAG --format '{{.Manifest.Digest}}'` prints the digest of a tag"
BASE: Final = "docker.io/library/python:3.12-slim"
"""Debian with a Python that pip may install into. Torch's wheels contain CUDA's libraries; the machine has the
driver's."""
TOOLS: Final = ("ca-certificates", "g++")
LABEL: Final = "org.spotbench.environment"
PIP: Final = "python3 -m pip install --no-cache-dir --disable-pip-version-check --no-input"

RELEASE: Final = re.compile(
    r"(\d{1,9}(\.\d{1,9}){1,3}((a|b|rc)\d{1,9})?(\.(post|dev)\d{1,9})?(\+[a-z0-9]{1,20})?)?", re.ASCII
)
"""The version of a package, or nothing. It is strict because the version becomes part of commands that a person pastes
and of what pip installs."""


def require_digest(reference: str) -> str:
    """Returns a reference that has a digest, or is empty. Raises `ValueError` for a tag alone: a second machine could
    get another image under the same tag."""
    if reference and not REFERENCE.fullmatch(reference):
        raise ValueError(f"expected NAME@sha256:… with 64 digits; {HINT}")
    return reference


def require_release(text: str) -> str:
    """Returns `text` if it is a package version or empty. Raises `ValueError` if not."""
    if not RELEASE.fullmatch(text):
        raise ValueError(f"expected a version such as 2.13.0, or '' for the newest, not {text[:40]!r}")
    return text


@dataclass(frozen=True, slots=True)
class Recipe:
    """A Dockerfile, and the text of the requirements.txt beside it. `wheels` are files to put beside it too."""

    dockerfile: str
    requirements: str
    wheels: tuple[str, ...] = ()


def container_recipe(torch: str, environment: str, needs: Sequence[str] = ()) -> Recipe:
    """The recipe of a container with what `bench image build` installs on an image: torch, a compiler, and a workload's
    needs (`pip triton==3.4`, `apt libnuma-dev`). `environment` is the digest of these, stored as a label."""
    pip = [one.partition(" ")[2] for one in needs if one.startswith("pip ")]
    apt = sorted({*TOOLS, *(one.partition(" ")[2] for one in needs if one.startswith("apt "))})
    wheels = tuple(one for one in pip if one.endswith(".whl"))
    requirements = [f"torch=={torch}" if torch else "torch", "numpy", *(one for one in pip if one not in wheels)]
    lines = [
        "# syntax=docker/dockerfile:1",
        "# Written by `bench image build --container`. Agent and harness are not in it: every run brings its own.",
        f"ARG BASE={BASE}",
        "FROM ${BASE}",
        f'LABEL {LABEL}="{environment}"',
        "ENV PYTHONUNBUFFERED=1 \\",
        "    NVIDIA_VISIBLE_DEVICES=all \\",
        "    NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        "RUN apt-get update && \\",
        f"    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends {' '.join(apt)} && \\",
        "    rm -rf /var/lib/apt/lists/*",
        "COPY requirements.txt /opt/bench/",
        f"RUN {PIP} -r /opt/bench/requirements.txt",
    ]
    if wheels:
        lines += [f"COPY {' '.join(wheels)} /opt/bench/wheels/", f"RUN {PIP} /opt/bench/wheels/*.whl"]
    lines.append('RUN python3 -c "import numpy, torch; print(torch.__version__)"')
    return Recipe("\n".join(lines) + "\n", "\n".join(requirements) + "\n", wheels)

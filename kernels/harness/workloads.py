"""Finds a workload by its name: the package `kernels.<name>` has a module `workload` with an object `WORKLOAD`."""

from __future__ import annotations

import importlib
import re
from typing import cast

from kernels import DEFAULT_WORKLOAD
from kernels.harness.own import OwnWorkload
from kernels.harness.reading import BadSpec, read_object, shorten_value, text_of
from kernels.harness.workload import Workload


def find_workload(name: object) -> Workload:
    """The workload called `name`, or a user's own, given as an object of `form` and `path` (below the payload).
    Raises `BadSpec` where there is none."""
    if isinstance(name, dict):
        fields = read_object(name, "workload", ("form", "path"))
        return OwnWorkload(text_of(fields["form"], "workload.form"), text_of(fields["path"], "workload.path"))
    if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise BadSpec(f"workload: {shorten_value(name)} is not the name of a workload; {DEFAULT_WORKLOAD} is one")
    module = f"kernels.{name}.workload"
    try:
        return cast(Workload, importlib.import_module(module).WORKLOAD)
    except ModuleNotFoundError as exc:
        if exc.name not in (module, f"kernels.{name}"):
            raise
        raise BadSpec(f"workload: there is no {name} in the payload (no module {module})") from exc

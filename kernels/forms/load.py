"""Loads a workload of any form."""

from __future__ import annotations

import importlib
from pathlib import Path

from kernels.forms.definition import BadWorkload, Definition

FORMS = {
    "file": "kernels.forms.one_file",
    "kernelbench": "kernels.forms.kernelbench",
    "gpumode": "kernels.forms.gpumode",
    "flashinfer": "kernels.forms.flashinfer",
}
"""Each form's module; it has a function `load(path)`."""


def load_workload(form: str, path: Path) -> Definition:
    """The workload at `path`. Raises `BadWorkload`."""
    if form not in FORMS:
        raise BadWorkload(f"no form is called {form!r}; there are {', '.join(FORMS)}")
    made: Definition = importlib.import_module(FORMS[form]).load(path)
    return made

"""The preconditions of a measurement. torch and numpy are imported only inside functions, as that may fail."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Gate:
    """A verdict on one precondition. `cause` is the diagnosis when it failed."""

    name: str
    passed: bool
    detail: str
    cause: str = "gate_failed"


def environment_gates() -> Iterator[Gate]:
    """The first three gates; each is tried only if the one before it has passed."""
    for gate in (torch_imports, numpy_matches, cuda_answers):
        verdict = gate()
        yield verdict
        if not verdict.passed:
            return


def torch_imports() -> Gate:
    """PyTorch can be imported."""
    try:
        import torch
    except Exception as exc:  # a broken installation raises anything from ImportError to OSError
        # A NumPy that torch was not built for can already fail here.
        cause = "numpy_mismatch" if "numpy" in traceback.format_exc().lower() else "torch_missing"
        return Gate("torch_imports", False, f"{type(exc).__name__}: {exc}", cause)
    return Gate("torch_imports", True, f"torch {torch.__version__}")


def numpy_matches() -> Gate:
    """PyTorch and NumPy can exchange arrays: a NumPy of another ABI lets torch load and then fails here."""
    name = "numpy_matches"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import numpy
            import torch

            there = torch.arange(3, dtype=torch.float32).numpy()
            back = torch.from_numpy(numpy.array([0.0, 1.0, 2.0], dtype=numpy.float32))
    except Exception as exc:  # what an ABI mismatch raises differs from version to version
        return Gate(name, False, f"{type(exc).__name__}: {exc}", "numpy_mismatch")
    if float(there.sum()) != 3.0 or float(back.sum()) != 3.0:
        return Gate(name, False, "an array changed on its way between torch and numpy", "numpy_mismatch")
    return Gate(name, True, f"numpy {numpy.__version__}")


def cuda_answers() -> Gate:
    """A CUDA device computes a right answer; or there is no NVIDIA device at all, and the CPU is measured.

    On a machine with an NVIDIA device that torch cannot use the gate fails, as the CPU must not be measured silently.
    """
    import torch

    name = "cuda_answers"
    if not torch.cuda.is_available():
        if not any(Path("/dev").glob("nvidia[0-9]*")):
            return Gate(name, True, "no NVIDIA device; the CPU is measured")
        if torch.version.cuda is None:
            detail = f"torch {torch.__version__} was built without CUDA, but this machine has a GPU"
            return Gate(name, False, detail, "torch_without_cuda")
        return Gate(name, False, f"torch {torch.__version__} finds no usable GPU: {init_error()}", "no_cuda")
    try:
        ones = torch.ones((64, 64), device="cuda")
        total = float((ones @ ones).sum().item())
    except RuntimeError as exc:
        return Gate(name, False, str(exc).splitlines()[0], "no_cuda")
    if total != 64.0**3:
        return Gate(name, False, f"the GPU computed a wrong result: 64^3 = {total}", "no_cuda")
    return Gate(name, True, f"{torch.cuda.get_device_name(0)}, CUDA {torch.version.cuda}")


def init_error() -> str:
    """PyTorch's words for why CUDA does not start."""
    import torch

    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as exc:
        return str(exc).splitlines()[0]
    return "PyTorch gave no reason"

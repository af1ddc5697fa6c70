"""The implementations of attention by name, and the bundled kernel of a device. A new implementation is a new entry."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from kernels.harness.registry import Entry, Registry
from kernels.harness.workload import Unavailable

if TYPE_CHECKING:
    import torch

    from kernels.attention.interface import AttentionKernel

CUDA_MODULE = "kernels.attention.cuda"
CPU_MODULE = "kernels.attention.cpu"
BACKENDS = ("default", "flash", "efficient", "cudnn", "math")

REGISTRY = Registry()
REGISTRY.add(
    Entry(
        "bench",
        "kernels.attention.implementations:bundled_kernel",
        variants=r"(@sm_[0-9]{2,3})?(:lse)?",
        listed=("bench", "bench:lse", "bench@sm_80"),
    )
)
REGISTRY.add(
    Entry(
        "sdpa",
        "kernels.attention.implementations:sdpa_implementation",
        variants=f":({'|'.join(BACKENDS)})",
        listed=tuple(f"sdpa:{name}" for name in BACKENDS),
    )
)
REGISTRY.add(
    Entry("fa4", "kernels.attention.rivals.flash:fa4_implementation", variants="(:split)?", listed=("fa4", "fa4:split"))
)
REGISTRY.add(Entry("fa3", "kernels.attention.rivals.flash:fa3_implementation"))
REGISTRY.add(Entry("flex", "kernels.attention.rivals.flex:flex_implementation"))
REGISTRY.add(Entry("cudnn-frontend", "kernels.attention.rivals.cudnn:cudnn_implementation"))
REGISTRY.add(Entry("flashinfer", "kernels.attention.rivals.flashinfer:flashinfer_implementation"))


def find_kernel(device: torch.device, *, threads: int = 0) -> AttentionKernel:
    """The bundled kernel for `device`, not yet built. `threads` counts CPU threads; 0 means as many as PyTorch uses.

    Raises `Unavailable` when there is no kernel for this kind of device. Each module is imported only when needed, so
    that a fault in one cannot keep the other from running.
    """
    name = {"cuda": CUDA_MODULE, "cpu": CPU_MODULE}.get(device.type)
    if name is None:
        raise Unavailable(f"no bundled kernel for device type {device.type}")
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as exc:
        if exc.name is None or not name.startswith(exc.name):
            raise
        raise Unavailable(f"no bundled kernel for {device.type}: the payload has no module {name}") from exc
    kernel: AttentionKernel = (
        module.cpu_kernel(device, threads=threads) if device.type == "cpu" else module.cuda_kernel(device)
    )
    return kernel

"""Lends memory of a CUDA device to another process, which copies the content, because answers of gigabytes would take
seconds through files. Only memory of the lender is accessible, and only to processes that get the handle."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

HANDLE_BYTES = 64
LAZY_PEER_ACCESS = 1


class Handle(ctypes.Structure):
    """CUipcMemHandle."""

    _fields_ = (("reserved", ctypes.c_ubyte * HANDLE_BYTES),)


class Bytes:
    """Device memory in a form that PyTorch can read."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3, "strides": None,
        }  # fmt: skip


def cuda_driver() -> Any:
    """The CUDA driver's library. Raises `OSError` where there is none."""
    return ctypes.CDLL("libcuda.so.1")


def check_driver(code: int, what: str) -> None:
    """Raises `RuntimeError` if a call of the driver failed."""
    if code:
        raise RuntimeError(f"{what}: the driver says {code}")


def lend_tensor(one: torch.Tensor) -> list[Any]:
    """The place of a contiguous tensor, for `borrowed` in another process. The caller keeps the tensor alive. Raises
    `RuntimeError`."""
    torch.cuda.synchronize(one.device)
    library, base, size, handle = cuda_driver(), ctypes.c_uint64(), ctypes.c_size_t(), Handle()
    address = ctypes.c_uint64(one.data_ptr())
    check_driver(
        library.cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(size), address), "where a tensor lies"
    )
    check_driver(library.cuIpcGetMemHandle(ctypes.byref(handle), base), "lending memory")
    return [bytes(handle.reserved).hex(), address.value - base.value]


def borrow_tensor(place: list[Any], size: int, device: torch.device) -> torch.Tensor:
    """A copy of `size` bytes of another process's memory, on this device. Raises `RuntimeError`."""
    handle_hex, offset = str(place[0]), int(place[1])
    torch.zeros(1, device=device)  # makes the device's context the current one
    library, address = cuda_driver(), ctypes.c_uint64()
    handle = Handle((ctypes.c_ubyte * HANDLE_BYTES)(*bytes.fromhex(handle_hex)[:HANDLE_BYTES]))
    check_driver(
        library.cuIpcOpenMemHandle_v2(ctypes.byref(address), handle, ctypes.c_uint(LAZY_PEER_ACCESS)), "borrowing"
    )
    try:
        copy = torch.as_tensor(Bytes(address.value + offset, size), device=device).clone()
        torch.cuda.synchronize(device)
        return copy
    finally:
        check_driver(library.cuIpcCloseMemHandle(address), "giving memory back")

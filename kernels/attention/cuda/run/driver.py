"""The calls of the CUDA driver API that are needed to load and launch a kernel, through ctypes."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from kernels.attention.cuda.errors import CudaError

JIT_INFO_LOG, JIT_INFO_LOG_BYTES, JIT_LOG_VERBOSE = 3, 4, 12  # CUjit_option
FUNCTION_LOCAL_BYTES, FUNCTION_REGISTERS, FUNCTION_MAX_DYNAMIC_SHARED = 3, 4, 8  # CUfunction_attribute
COOPERATIVE, PROGRAMMATIC_STREAM_SERIALIZATION = 2, 6  # CUlaunchAttributeID
DEVICE_SM_COUNT, DEVICE_L2_BYTES = 16, 38  # CUdevice_attribute
MAP_TYPES = {"bool": 0, "float8": 0, "float16": 6, "float32": 7, "bfloat16": 9}  # CUtensorMapDataType
MAP_INTERLEAVE_NONE, MAP_L2_PROMOTION_256_BYTES, MAP_OUTSIDE_IS_ZERO = 0, 3, 0
MAP_SWIZZLE_NONE, MAP_SWIZZLE_128_BYTES = 0, 3
LOG_BYTES = 1 << 16
CAPTURE_MODE_RELAXED = 2  # CUstreamCaptureMode
NON_BLOCKING_STREAM = 1  # CUstream_flags: it does not wait for the default stream
OUT_OF_MEMORY = 2  # CUresult


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        *((name, ctypes.c_uint) for name in ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "shared")),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    ]


class TensorMap(ctypes.Structure):
    """CUtensorMap: 128 bytes that only the driver can read. The driver wants them at a multiple of 64."""

    _fields_ = [("words", ctypes.c_uint64 * 16)]
    ALIGNMENT = 64
    tensor = ""
    """Which of a call's tensors it describes, e.g. `q`; `SCRATCH` for memory that the call has made."""

    SCRATCH = "scratch"
    address = 0
    """The address of the map, if it was made by `aligned`."""

    @classmethod
    def aligned(cls) -> TensorMap:
        """A new map in aligned memory of its own."""
        memory = ctypes.create_string_buffer(ctypes.sizeof(cls) + cls.ALIGNMENT)
        made = cls.from_buffer(memory, -ctypes.addressof(memory) % cls.ALIGNMENT)
        made.address = ctypes.addressof(made)
        return made


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute: an id, and 64 bytes of which each id uses its own."""

    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_int * 16)]

    @classmethod
    def switched_on(cls, attribute_id: int) -> LaunchAttribute:
        """An attribute that is on or off, on."""
        attribute = cls(id=attribute_id)
        attribute.value[0] = 1
        return attribute


@dataclass(frozen=True, slots=True)
class Function:
    """A loaded kernel. `registers` and `local_bytes` (spills and stack, a thread) are what the driver reports."""

    handle: int
    module: int
    registers: int
    local_bytes: int
    log: str


class Driver:
    """libcuda, with its error codes turned into `CudaError`."""

    def __init__(self) -> None:
        self.library: Any = ctypes.CDLL("libcuda.so.1")
        self.library.cuLaunchKernelEx.argtypes = [ctypes.c_void_p] * 4
        pointer, number = ctypes.c_void_p, ctypes.c_int
        self.library.cuTensorMapReplaceAddress.argtypes = [pointer, pointer]
        self.library.cuTensorMapEncodeTiled.argtypes = [pointer, number, ctypes.c_uint, *[pointer] * 5, *[number] * 4]
        size, stream, address = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_uint64
        self.library.cuMemAlloc_v2.argtypes = [pointer, size]
        self.library.cuMemFree_v2.argtypes = [address]
        self.library.cuMemsetD8Async.argtypes = [address, ctypes.c_ubyte, size, stream]
        self.library.cuStreamSynchronize.argtypes = self.library.cuStreamDestroy_v2.argtypes = [stream]
        self.contexts: dict[int, int] = {}

    def check(self, code: int, doing: str) -> None:
        """Raises `CudaError` for a `code` that is not success."""
        if code:
            message = ctypes.c_char_p()
            self.library.cuGetErrorString(code, ctypes.byref(message))
            raise CudaError(doing, code, (message.value or b"unknown error").decode())

    def device_attribute(self, attribute: int, device_index: int) -> int:
        value, device = ctypes.c_int(), ctypes.c_int()
        self.check(self.library.cuDeviceGet(ctypes.byref(device), device_index), "finding the device")
        code = self.library.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        self.check(code, "asking the device for an attribute")
        return value.value

    def enter(self, device_index: int) -> None:
        """Makes the device's primary context, which PyTorch uses, the current context of the calling thread."""
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.check(self.library.cuCtxGetCurrent(ctypes.byref(context)), "asking for the current context")
        if context.value and self.contexts.get(device_index) == context.value:
            return
        self.check(self.library.cuDeviceGet(ctypes.byref(device), device_index), "finding the device")
        code = self.library.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
        self.check(code, "retaining the primary context")
        self.check(self.library.cuCtxSetCurrent(context), "entering the primary context")
        self.contexts[device_index] = context.value or 0

    @contextmanager
    def during_captures(self) -> Iterator[None]:
        """A context in which this thread may allocate memory and load code, which no stream records, even while a graph
        is captured."""
        mode = ctypes.c_int(CAPTURE_MODE_RELAXED)
        exchange = self.library.cuThreadExchangeStreamCaptureMode
        self.check(exchange(ctypes.byref(mode)), "relaxing the thread's capture mode")
        try:
            yield
        finally:
            self.check(exchange(ctypes.byref(mode)), "restoring the thread's capture mode")

    def zeroed_memory(self, size: int) -> int:
        """The address of `size` new bytes in the current context, zero for every launch from now on, captured or not.

        They are zeroed on a separate stream that is never captured. This waits for that stream only.
        """
        address, stream, lib = ctypes.c_uint64(), ctypes.c_void_p(), self.library
        with self.during_captures():
            self.check(lib.cuStreamCreate(ctypes.byref(stream), NON_BLOCKING_STREAM), "making a stream")
            try:
                self.check(lib.cuMemAlloc_v2(ctypes.byref(address), size), f"allocating {size} bytes for counters")
                code = lib.cuMemsetD8Async(address, 0, size, stream) or lib.cuStreamSynchronize(stream)
                if code:
                    lib.cuMemFree_v2(address)
                self.check(code, "zeroing counters")
            finally:
                lib.cuStreamDestroy_v2(stream)
        return address.value

    def replace_address(self, tensor_map: TensorMap, address: int) -> None:
        """Makes a map describe another tensor of the same layout."""
        code = self.library.cuTensorMapReplaceAddress(tensor_map.address, address)
        if code:
            self.check(code, "giving a tensor map another address")

    def load(self, image: bytes, name: str, shared_bytes: int) -> Function:
        """Loads a cubin, or PTX that the driver translates, into the current context, and raises the limit of shared
        memory."""
        log = ctypes.create_string_buffer(LOG_BYTES)
        options = (ctypes.c_int * 3)(JIT_INFO_LOG, JIT_INFO_LOG_BYTES, JIT_LOG_VERBOSE)
        values = (ctypes.c_void_p * 3)(ctypes.addressof(log), LOG_BYTES, 1)
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        with self.during_captures():
            code = self.library.cuModuleLoadDataEx(ctypes.byref(module), image, 3, options, values)
        self.check(code, f"loading {name}")
        code = self.library.cuModuleGetFunction(ctypes.byref(function), module, name.encode())
        self.check(code, f"finding {name} in its module")
        code = self.library.cuFuncSetAttribute(function, FUNCTION_MAX_DYNAMIC_SHARED, shared_bytes)
        self.check(code, f"giving {name} {shared_bytes} bytes of shared memory")
        version_parts = [ctypes.c_int(), ctypes.c_int()]
        for value, attribute in zip(version_parts, (FUNCTION_REGISTERS, FUNCTION_LOCAL_BYTES), strict=True):
            code = self.library.cuFuncGetAttribute(ctypes.byref(value), attribute, function)
            self.check(code, f"asking about {name}")
        text = log.value.decode(errors="replace")
        return Function(function.value or 0, module.value or 0, version_parts[0].value, version_parts[1].value, text)

    def tensor_map(
        self,
        dtype: str,
        address: int,
        sizes: Sequence[int],
        strides: Sequence[int],
        box: Sequence[int],
        *,
        swizzled: bool = True,
    ) -> TensorMap:
        """The map of a tensor: sizes of its dimensions, innermost first; strides in bytes of all but that one; what one
        copy moves. Its rows land swizzled in 128 bytes, or one behind the other; what lies outside arrives as zeros."""
        rank, made = len(sizes), TensorMap.aligned()
        code = self.library.cuTensorMapEncodeTiled(
            ctypes.addressof(made),
            MAP_TYPES[dtype],
            rank,
            address,
            (ctypes.c_uint64 * rank)(*sizes),
            (ctypes.c_uint64 * (rank - 1))(*strides),
            (ctypes.c_uint32 * rank)(*box),
            (ctypes.c_uint32 * rank)(*[1] * rank),
            MAP_INTERLEAVE_NONE,
            MAP_SWIZZLE_128_BYTES if swizzled else MAP_SWIZZLE_NONE,
            MAP_L2_PROMOTION_256_BYTES,
            MAP_OUTSIDE_IS_ZERO,
        )
        self.check(code, f"encoding a tensor map of sizes {tuple(sizes)}, strides {tuple(strides)}")
        return made


@cache
def cuda_driver() -> Driver:
    """The driver, one for each process. Raises OSError where there is no libcuda."""
    return Driver()

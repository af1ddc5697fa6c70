"""Scaled dot-product attention on a CUDA device, by our own kernels.

    out = attention(q, k, v, causal=True)
    out, lse = attention(q, k, v, causal=True, return_lse=True)
    run = bind(q, k, v, out, causal=True); run(); run()

Shapes are [B, H, S, D]; K and V may have fewer heads than Q. Whatever is not supported raises `Unsupported`.
"""

from __future__ import annotations

import ctypes
import math
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from kernels.attention.cuda.build import Built, Cache, build_all, build_one
from kernels.attention.cuda.compiler import Compiler, Target, find_compiler
from kernels.attention.cuda.driver import DEVICE_L2_BYTES, DEVICE_SM_COUNT, Function, LaunchConfig, driver
from kernels.attention.cuda.errors import BuildFailed, CudaError, Unsupported
from kernels.attention.cuda.parameters import Divisor, Parameters
from kernels.attention.cuda.planning import ELEMENT_BYTES, LOG2_E, Launch, Layout, Machine, Problem, plan
from kernels.attention.cuda.variants import Chip, Entry, chip_of, table

DTYPE_NAMES = {torch.float16: "float16", torch.bfloat16: "bfloat16", torch.float32: "float32"}
ALIGNMENTS = ("top-left", "bottom-right")


def default_cache() -> Path:
    """Where kernels are kept that nobody named a place for."""
    return Path(os.environ.get("BENCH_KERNEL_CACHE", "~/.cache/bench-kernels")).expanduser()


class Engine:
    """The kernels of one device: compiled when first needed, loaded once, launched on PyTorch's current stream.

    `target` overrides what is compiled for: with `compute_75` the driver translates the very code that a T4 runs.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        cache_dir: Path | None = None,
        target: Target | None = None,
        compiler: Compiler | None = None,
    ) -> None:
        index = device.index if device.index is not None else torch.cuda.current_device()
        self.device = torch.device("cuda", index)
        major, minor = torch.cuda.get_device_capability(self.device)
        self.target = target or Target(f"sm_{major}{minor}")
        chip = chip_of(self.target.capability)
        if chip is None:
            raise Unsupported(f"no kernels for compute capability {major}.{minor}: the oldest is 7.5")
        if self.target.capability > major * 10 + minor:
            raise Unsupported(f"a device of compute capability {major}.{minor} cannot run {self.target.name}")
        self.chip: Chip = chip
        self.cache = Cache(cache_dir or default_cache())
        self.compiler = compiler
        self.functions: dict[str, Function] = {}
        self.built: dict[str, Built] = {}
        self.lock = threading.Lock()
        torch.cuda.init()
        with torch.cuda.device(self.device):
            torch.empty(1, device=self.device)  # creates PyTorch's context
        driver_ = driver()
        driver_.enter(index)
        self.machine = Machine(
            chip=self.chip,
            sm_count=driver_.device_attribute(DEVICE_SM_COUNT, index),
            l2_bytes=driver_.device_attribute(DEVICE_L2_BYTES, index),
        )

    def entries(self) -> list[Entry]:
        """Every kernel there is for this engine's chip."""
        return [*table(self.chip)]

    def build_all(self, workers: int | None = None) -> list[Built]:
        """Compile and load all kernels. Raises `BuildFailed`."""
        entries = self.entries()
        built = build_all(entries, self.target, self.find_compiler(), self.cache, workers)
        for entry, one in zip(entries, built, strict=True):
            self.load(entry, one)
        return built

    def find_compiler(self) -> Compiler:
        if self.compiler is None:
            self.compiler = find_compiler()
        return self.compiler

    def function(self, entry: Entry) -> Function:
        """The loaded kernel, compiled now if need be. Do this before capturing a graph: loading breaks a capture."""
        found = self.functions.get(entry.name)
        if found is not None:
            return found
        with self.lock:
            if entry.name not in self.functions:
                self.load(entry, build_one(entry, self.target, self.find_compiler(), self.cache))
            return self.functions[entry.name]

    def load(self, entry: Entry, built: Built) -> None:
        driver().enter(self.device.index)
        try:
            function = driver().load(built.image, entry.name, entry.shared_bytes)
        except CudaError as exc:
            raise BuildFailed(str(exc), remedy="a cubin must be built for the device's own architecture") from exc
        if function.local_bytes:
            raise BuildFailed(f"{entry.name} spills {function.local_bytes} bytes a thread once loaded")
        self.built[entry.name], self.functions[entry.name] = built, function


class Bound:
    """A call with its tensors bound: all that is left at each call is the launch, on PyTorch's current stream.

    Not for use by two threads at once. Keeps its tensors alive. `out` and `lse` are what the call writes.
    """

    def __init__(
        self, engine: Engine, launch: Launch, parameters: Parameters, tensors: Sequence[torch.Tensor | None]
    ) -> None:
        self.launch = launch
        self.tensors = tensors
        self.parameters = parameters
        self.pointers = (ctypes.c_void_p * 1)(ctypes.addressof(parameters))
        self.steps: list[tuple[LaunchConfig, int, int]] = []
        for entry, grid_x, grid_y in self.entries():
            function = engine.function(entry)
            config = LaunchConfig(grid_x, grid_y, 1, entry.threads, 1, 1, entry.shared_bytes, None, None, 0)
            self.steps.append((config, ctypes.addressof(config), function.handle))
        self.device_index: int = engine.device.index
        self.arguments = ctypes.addressof(self.pointers)
        self.launch_kernel: Callable[[int, int, int, None], int] = driver().library.cuLaunchKernelEx
        self.current_stream: Callable[[int], int] = getattr(
            torch._C, "_cuda_getCurrentRawStream", lambda index: torch.cuda.current_stream(index).cuda_stream
        )

    def entries(self) -> list[tuple[Entry, int, int]]:
        """The kernels to launch, in order, each with its grid."""
        found: list[tuple[Entry, int, int]] = [(self.launch.kernel, self.launch.blocks, self.launch.splits)]
        combine = self.launch.combine
        if combine is not None:
            rows = self.parameters.all_heads * self.parameters.seq_q
            found.append((combine, -(-rows // combine.rows_per_block), 1))
        return found

    def __call__(self) -> None:
        stream = self.current_stream(self.device_index)
        for config, address, function in self.steps:
            config.stream = stream
            code = self.launch_kernel(address, function, self.arguments, None)
            if code:
                driver().check(code, f"launching {self.launch.kernel.name}")


engines: dict[int, Engine] = {}
engines_lock = threading.Lock()


def engine_of(device: torch.device) -> Engine:
    """The process's engine for a device, made when first asked for."""
    index = device.index if device.index is not None else torch.cuda.current_device()
    found = engines.get(index)
    if found is None:
        with engines_lock:
            found = engines.setdefault(index, Engine(torch.device("cuda", index)))
    return found


def layout(tensor: torch.Tensor, name: str) -> Layout:
    """A tensor's layout; a dimension of size 1 is never stepped over, so its stride does not matter."""
    sizes, strides = tensor.shape, tensor.stride()
    if sizes[3] > 1 and strides[3] != 1:
        raise Unsupported(f"the last dimension of {name} must be contiguous; its stride is {strides[3]}")
    batch, head, row = (stride if size > 1 else 0 for size, stride in zip(sizes[:3], strides[:3], strict=True))
    return Layout(batch, head, row, tensor.data_ptr())


def problem_of(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, *, causal: bool, alignment: str
) -> Problem:
    """The problem that these tensors pose. Raises `Unsupported`, or ValueError where they contradict each other."""
    if not (q.dim() == k.dim() == v.dim() == 4):
        raise ValueError(f"q, k and v must be [B, H, S, D]; they have {q.dim()}, {k.dim()} and {v.dim()} dimensions")
    if k.shape != v.shape or q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise ValueError(f"shapes do not fit: q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}")
    if out.shape != q.shape or out.dtype != q.dtype:
        raise ValueError(f"out must be {tuple(q.shape)} {q.dtype}, not {tuple(out.shape)} {out.dtype}")
    if not (q.dtype == k.dtype == v.dtype):
        raise Unsupported(f"q, k and v must have one dtype, not {q.dtype}, {k.dtype} and {v.dtype}")
    if any(tensor.device != q.device for tensor in (q, k, v, out)):
        raise Unsupported("q, k, v and out must be on one device")
    if alignment not in ALIGNMENTS:
        raise ValueError(f"causal_alignment is one of {', '.join(ALIGNMENTS)}, not {alignment!r}")
    batch, heads, seq_q, head_dim = q.shape
    seq_k = k.shape[2]
    return Problem(
        dtype=DTYPE_NAMES.get(q.dtype, str(q.dtype)),
        batch=batch,
        heads=heads,
        kv_heads=k.shape[1],
        seq_q=seq_q,
        seq_k=seq_k,
        head_dim=head_dim,
        causal=causal,
        causal_offset=seq_k - seq_q if alignment == "bottom-right" else 0,
        q=layout(q, "q"),
        k=layout(k, "k"),
        v=layout(v, "v"),
        out=layout(out, "out"),
    )


def parameters_of(problem: Problem, launch: Launch, scale: float) -> Parameters:
    """The launch's parameters but for the pointers to what the kernel writes beside `out`."""
    q, k, v, out = problem.q, problem.k, problem.v, problem.out
    steps = {
        f"{name}_{axis}": getattr(of, axis) * ELEMENT_BYTES
        for name, of in (("q", q), ("k", k), ("v", v), ("out", out))
        for axis in ("batch", "head", "row")
    }
    return Parameters(
        q=q.address,
        k=k.address,
        v=v.address,
        out=out.address,
        **steps,
        heads=Divisor.of(problem.heads),
        group=Divisor.of(problem.heads // problem.kv_heads),
        all_heads=problem.batch * problem.heads,
        seq_q=problem.seq_q,
        seq_k=problem.seq_k,
        head_dim=problem.head_dim,
        causal_offset=problem.causal_offset,
        row_tiles=Divisor.of(launch.row_tiles),
        section=Divisor.of(launch.section),
        section_tiles=Divisor.of(launch.section * launch.row_tiles),
        splits=launch.splits,
        tiles_per_split=launch.tiles_per_split,
        scale_log2=scale * LOG2_E,
    )


def bind(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    causal_alignment: str = "top-left",
    lse: torch.Tensor | None = None,
    splits: int | None = None,
    engine: Engine | None = None,
) -> Bound:
    """A call with its tensors bound, to be made as often as wanted. Arguments as for `attention`.

    `out` is [B, H, S_q, D] with any strides; `lse`, if given, contiguous float32 [B, H, S_q]; `splits` overrides into
    how many parts the keys are cut.
    """
    if scale is None:
        scale = 1.0 / math.sqrt(q.shape[-1])
    if not (math.isfinite(scale) and scale > 0.0):
        raise Unsupported(f"scale must be positive and finite, not {scale}")
    if q.device.type != "cuda":
        raise Unsupported(f"the CUDA kernel needs tensors on a CUDA device, not on {q.device}")
    problem = problem_of(q, k, v, out, causal=causal, alignment=causal_alignment)
    engine = engine or engine_of(q.device)
    driver().enter(engine.device.index)
    launch = plan(problem, engine.machine, splits=splits)
    parameters = parameters_of(problem, launch, scale)
    kept: list[torch.Tensor | None] = [q, k, v, out, lse]
    rows = problem.batch * problem.heads * problem.seq_q
    if lse is not None:
        if lse.shape != q.shape[:3] or lse.dtype != torch.float32 or not lse.is_contiguous() or lse.device != q.device:
            raise ValueError("lse must be contiguous float32 [B, H, S_q] on the device of q")
        parameters.lse = lse.data_ptr()
    if launch.splits > 1:
        partial = torch.empty(launch.splits * rows * (problem.head_dim + 1), dtype=torch.float32, device=q.device)
        parameters.partial_out = partial.data_ptr()
        parameters.partial_lse = partial.data_ptr() + launch.splits * rows * problem.head_dim * 4
        kept.append(partial)
    return Bound(engine, launch, parameters, kept)


def forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float, causal_alignment: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and log-sum-exp; what the registered operator calls."""
    out = torch.empty_like(q)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    bind(q, k, v, out, causal=causal, scale=scale, causal_alignment=causal_alignment, lse=lse)()
    return out, lse


def forward_shapes(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float, causal_alignment: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """What `forward` returns, without its contents: for the compiler's tracing."""
    del k, v, causal, scale, causal_alignment
    return torch.empty_like(q), torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)


# define and impl rather than torch.library.custom_op, whose wrapper costs about three times as much a call.
library = torch.library.Library("spotbench", "FRAGMENT")
library.define("attention(Tensor q, Tensor k, Tensor v, bool causal, float scale, str alignment) -> (Tensor, Tensor)")
library.impl("attention", forward, "CUDA")
torch.library.register_fake("spotbench::attention", forward_shapes, lib=library)


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    causal_alignment: str = "top-left",
    out: torch.Tensor | None = None,
    return_lse: bool = False,
    engine: Engine | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """softmax(scale Q K^T) V, accumulated in float32.

    q is [B, H, S_q, D], k and v [B, H_kv, S_k, D], float16 or bfloat16, D at most 256, any strides but a contiguous
    last dimension; H is a multiple of H_kv, and head h of Q reads head h // (H / H_kv) of K and V. `scale` defaults to
    1/sqrt(D). `causal` hides key j from query i when j > i (`top-left`, as in PyTorch) or when j > i + S_k - S_q
    (`bottom-right`). A row that sees no key is zero, with log-sum-exp -inf.

    Returns the output, like q, and with `return_lse` also log(sum(exp(scores))), float32 [B, H, S_q]. Under
    torch.compile it becomes the operator spotbench::attention. Raises `Unsupported`; never computes by other means.
    """
    if scale is None:
        scale = 1.0 / math.sqrt(q.shape[-1])
    if torch.compiler.is_compiling() and out is None and engine is None:
        result, sums = torch.ops.spotbench.attention(q, k, v, causal, scale, causal_alignment)
        return (result, sums) if return_lse else result
    if out is None:
        out = torch.empty_like(q)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device) if return_lse else None
    bind(q, k, v, out, causal=causal, scale=scale, causal_alignment=causal_alignment, lse=lse, engine=engine)()
    return out if lse is None else (out, lse)

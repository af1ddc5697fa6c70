"""The CPU kernel behind the common interface: checks the tensors, hands their addresses to the C++ library."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from pathlib import Path

import torch

from kernels.attention.case import Case, refuse_features
from kernels.attention.cpu.compile import Artifact, build_library
from kernels.attention.interface import BuildFailed, BuildRecord, Plan, Unavailable

MAX_HEAD_DIM = 256
DTYPE_CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
INSTRUCTION_SETS = {16: "avx512", 8: "avx2", 4: "simd128"}


class Problem(ctypes.Structure):
    """`AttentionProblem` in attention.cpp, field for field. Strides count elements."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", "out", "lse")),
        *((f"{name}_strides", ctypes.c_int64 * 3) for name in ("q", "k", "v", "out")),
        *((name, ctypes.c_int64) for name in ("batch", "heads", "kv_heads", "seq_q", "seq_k", "head_dim")),
        ("scale", ctypes.c_float),
        *((name, ctypes.c_int32) for name in ("causal", "dtype", "threads")),
    )


Forward = Callable[[object], int]


def refuse_unfit(
    out: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lse: torch.Tensor | None
) -> None:
    """Raises Unavailable for tensors, none of them empty, that the library would read or write out of bounds."""
    batch, heads, _, head_dim = q.shape
    kv_heads = k.shape[1]
    if k.shape != v.shape or k.shape[0] != batch or k.shape[3] != head_dim or out.shape != q.shape:
        raise Unavailable(f"shapes do not fit: q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}")
    if heads % kv_heads:
        raise Unavailable(f"{heads} query heads cannot share {kv_heads} KV heads")
    if head_dim > MAX_HEAD_DIM:
        raise Unavailable(f"head_dim {head_dim} is over {MAX_HEAD_DIM}")
    if q.dtype not in DTYPE_CODES or {t.dtype for t in (k, v, out)} != {q.dtype}:
        raise Unavailable(f"dtypes q {q.dtype}, k {k.dtype}, v {v.dtype}, out {out.dtype}")
    if any(t.device.type != "cpu" for t in (q, k, v, out)):
        raise Unavailable(f"the CPU kernel needs CPU tensors, not {q.device}")
    if head_dim > 1 and out.stride(3) != 1:
        raise Unavailable("the last dimension of the output is not contiguous")
    if lse is not None and (lse.shape != q.shape[:3] or lse.dtype != torch.float32 or not lse.is_contiguous()):
        raise Unavailable("lse must be contiguous float32 [batch, heads, seq_q]")


class CpuAttention:
    """Tiled attention with an online softmax; fp32, bf16 and fp16 with fp32 arithmetic; head dimensions 1 to 256."""

    def __init__(self, *, threads: int = 0) -> None:
        if threads < 0:
            raise ValueError(f"threads must be 0 (as PyTorch) or more, not {threads}")
        self.threads = threads
        self.forward: Forward | None = None
        self.name = "cpu"

    def build(self, out_dir: Path, cache_dir: Path) -> BuildRecord:
        """Compile or take from `cache_dir`, then load. A cached library that does not load is built again, once."""
        artifact = build_library(out_dir, cache_dir)
        try:
            self.load(artifact)
        except BuildFailed:
            if not artifact.record.cached:
                raise
            artifact = build_library(out_dir, cache_dir, fresh=True)
            self.load(artifact)
        return artifact.record

    def load(self, artifact: Artifact) -> None:
        """Bind the library's entry points. Raises `BuildFailed` when it is not what this module expects."""
        try:
            library = ctypes.CDLL(str(artifact.library))
            forward = library.attention_forward
            library.attention_problem_size.restype = ctypes.c_int64
            size = library.attention_problem_size()
            width = library.attention_vector_width()
            library.attention_use_openmp.argtypes = [ctypes.c_void_p]
            library.attention_use_openmp.restype = None
        except (OSError, AttributeError) as exc:
            raise BuildFailed(f"the built kernel does not load: {exc}", remedy="empty $BENCH_KERNEL_CACHE") from exc
        if size != ctypes.sizeof(Problem):
            raise BuildFailed(
                f"attention.cpp and kernel.py disagree on AttentionProblem: {size} and {ctypes.sizeof(Problem)} bytes",
                remedy="the payload mixes two versions; upload it again",
            )
        forward.argtypes = [ctypes.c_void_p]
        forward.restype = ctypes.c_int
        library.attention_use_openmp(torch_openmp())
        self.forward = forward
        self.name = f"cpu-{INSTRUCTION_SETS.get(width, 'simd')}"

    def supports(self, case: Case) -> str | None:
        """None when the case can run, else the reason why it cannot."""
        if case.shape.head_dim > MAX_HEAD_DIM:
            return f"head_dim {case.shape.head_dim} is over {MAX_HEAD_DIM}"
        return refuse_features(case, "the bundled kernel of processors")

    def run(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, scale: float | None = None
    ) -> torch.Tensor:
        """The output, shape [B, H, S_q, D], contiguous, as `q` is in dtype. Raises `Unavailable`."""
        out = torch.empty(q.shape, dtype=q.dtype)
        self.run_into(out, q, k, v, causal=causal, scale=scale)
        return out

    def run_into(
        self,
        out: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        causal: bool,
        scale: float | None = None,
        lse: torch.Tensor | None = None,
    ) -> None:
        """Write the output to `out` (last dimension contiguous) and log(sum(exp(scores))) to `lse`, if given.

        `lse` is contiguous float32 [B, H, S_q]. Raises `Unavailable` for tensors that the kernel does not take.
        """
        inputs = contiguous_last(q, k, v)  # named, so that copies live until the call has read them
        self.call(self.problem(out, *inputs, causal=causal, scale=scale, lse=lse))

    def prepare(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float | None = None
    ) -> Plan:
        """A plan bound to these tensors. Each call still allocates its output, as PyTorch's attention does."""
        inputs = contiguous_last(q, k, v)
        shape, dtype = q.shape, q.dtype
        problem = self.problem(torch.empty(shape, dtype=dtype), *inputs, causal=causal, scale=scale)
        problem.out = None
        address, forward = ctypes.addressof(problem), self.loaded()

        def plan(_keep_alive: object = (inputs, problem)) -> torch.Tensor:
            out = torch.empty(shape, dtype=dtype)
            problem.out = out.data_ptr()
            if forward(address) != 0:
                raise MemoryError("the CPU kernel could not allocate its scratch memory")
            return out

        return plan

    def problem(
        self,
        out: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        causal: bool,
        scale: float | None,
        lse: torch.Tensor | None = None,
    ) -> Problem:
        """The arguments in the library's own form, after every check it relies on."""
        batch, heads, seq_q, head_dim = q.shape
        kv_heads, seq_k = k.shape[1], k.shape[2]
        if min(batch, heads, kv_heads, seq_q, seq_k, head_dim) < 1:
            raise Unavailable(f"empty tensors: q {tuple(q.shape)}, k {tuple(k.shape)}")
        refuse_unfit(out, q, k, v, lse)
        strides = ctypes.c_int64 * 3
        return Problem(
            q=q.data_ptr(),
            k=k.data_ptr(),
            v=v.data_ptr(),
            out=out.data_ptr(),
            lse=lse.data_ptr() if lse is not None else None,
            q_strides=strides(*q.stride()[:3]),
            k_strides=strides(*k.stride()[:3]),
            v_strides=strides(*v.stride()[:3]),
            out_strides=strides(*out.stride()[:3]),
            batch=batch,
            heads=heads,
            kv_heads=kv_heads,
            seq_q=seq_q,
            seq_k=seq_k,
            head_dim=head_dim,
            scale=1.0 / math.sqrt(head_dim) if scale is None else scale,
            causal=int(causal),
            dtype=DTYPE_CODES[q.dtype],
            threads=self.threads or torch.get_num_threads(),
        )

    def call(self, problem: Problem) -> None:
        """Run one problem. Raises `MemoryError` when the scratch memory cannot be had."""
        if self.loaded()(ctypes.addressof(problem)) != 0:
            raise MemoryError("the CPU kernel could not allocate its scratch memory")

    def loaded(self) -> Forward:
        """The library's entry point. Raises `Unavailable` before `build`."""
        if self.forward is None:
            raise Unavailable("the CPU kernel is not built")
        return self.forward


def contiguous_last(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The same tensors with the last dimension contiguous, copied only where it is not."""
    return tuple(t if t.shape[-1] == 1 or t.stride(-1) == 1 else t.contiguous() for t in tensors)


def torch_openmp() -> int | None:
    """The address of GOMP_parallel in the OpenMP runtime that PyTorch loaded, or None when it uses another runtime."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    except OSError:
        return None
    paths = {line.split(maxsplit=5)[5] for line in maps.splitlines() if "libgomp" in line}
    beside_torch = {path for path in paths if Path(path).is_relative_to(Path(torch.__file__).parents[1])}
    for path in sorted(beside_torch or paths):
        try:
            return ctypes.cast(ctypes.CDLL(path).GOMP_parallel, ctypes.c_void_p).value
        except (OSError, AttributeError):
            continue
    return None

"""Packages with attention of others, played on a processor: they take the arguments of the real ones and compute with
the reference. The signatures are those of flash-attn-3 (its sources of 2026-08), flash-attn-4 4.0.0b36, cudnn-frontend
1.32.0 and flashinfer-python 0.7.2.post1."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from kernels.attention import reference
from kernels.attention.reference import Terms

Arguments = dict[str, Any]


def signed(names: str) -> Callable[[Callable[[Arguments], Any]], Any]:
    """A function that takes the arguments of these names and no other. `*` marks those that follow it as keywords; the
    function gets them as a dictionary."""
    kinds = inspect.Parameter
    parameters, kind = [], kinds.POSITIONAL_OR_KEYWORD
    for name in names.split():
        if name.startswith("*"):
            parameters.append(kinds(name[1:], kinds.VAR_POSITIONAL))
            kind = kinds.KEYWORD_ONLY
        else:
            parameters.append(kinds(name, kind, default=None))
    signature = inspect.Signature(parameters)

    def decorate(function: Callable[[Arguments], Any]) -> Any:
        def played(*args: Any, **kwargs: Any) -> Any:
            return function(signature.bind(*args, **kwargs).arguments)

        played.names = names.split()  # type: ignore[attr-defined]
        return played

    return decorate


def compute_forward(q: Any, k: Any, v: Any, causal: bool, window: int, sinks: Any) -> reference.Reference:
    """The reference, on [B, H, S, D]."""
    return reference.attention(q, k, v, causal=causal, terms=Terms(window, sinks))


def compute_gradients(q: Any, k: Any, v: Any, slope: Any, causal: bool, terms: Terms) -> tuple[torch.Tensor, ...]:
    """The reference's gradients, rounded as q is; with sinks theirs last, in float32."""
    found = reference.attention_backward(q, k, v, slope, causal=causal, terms=terms)
    gradients = [x.to(q.dtype) for x in (found.dq, found.dk, found.dv)]
    return tuple(gradients if found.dsinks is None else [*gradients, found.dsinks.float()])


def window_of(given: Arguments) -> int:
    """How many keys a row sees by FlashAttention's bounds, 0 for all."""
    left = given.get("window_size_left")
    return 0 if left is None or left < 0 else left + 1


# FlashAttention 3 and 4: [B, S, H, D].


FA3_FORWARD = (
    "q k v k_new v_new qv out_ cu_seqlens_q cu_seqlens_k cu_seqlens_k_new seqused_q seqused_k max_seqlen_q "
    "max_seqlen_k page_table kv_batch_idx leftpad_k rotary_cos rotary_sin seqlens_rotary q_descale k_descale v_descale "
    "softmax_scale causal window_size_left window_size_right attention_chunk softcap rotary_interleaved "
    "scheduler_metadata num_splits pack_gqa sm_margin"
)
FA3_BACKWARD = (
    "dout q k v out softmax_lse cu_seqlens_q cu_seqlens_k sequed_q sequed_k max_seqlen_q max_seqlen_k dq dk dv "
    "softmax_scale is_causal window_size_left window_size_right softcap deterministic sm_margin"
)
FA4_FORWARD = (
    "q k v qv cu_seqlens_q cu_seqlens_k seqused_q seqused_k max_seqlen_q max_seqlen_k min_seqlen_k page_table "
    "softmax_scale causal softcap window_size_left window_size_right learnable_sink tile_mn mma_pv_is_rs "
    "intra_wg_overlap num_threads num_splits pack_gqa _arch score_mod mask_mod block_sparse_tensors return_lse out lse "
    "aux_tensors aux_scalars q_descale k_descale v_descale gather_kv_indices scheduler_metadata seqlen_k_per_split "
    "disable_scheduler_metadata gather_bwd_recompute_p"
)
FA4_BACKWARD = (
    "q k v out dout lse softmax_scale causal softcap window_size_left window_size_right m_block_size n_block_size "
    "num_threads pack_gqa num_stages_Q num_stages_dO SdP_swapAB dKV_swapAB dQ_swapAB AtomLayoutMSdP AtomLayoutNdKV "
    "AtomLayoutMdQ V_in_regs cu_seqlens_q cu_seqlens_k seqused_q seqused_k max_seqlen_q max_seqlen_k deterministic dq dk "
    "dv score_mod score_mod_bwd mask_mod aux_tensors aux_scalars block_sparse_tensors dlse learnable_sink"
)


def turned(given: Arguments, *names: str) -> list[torch.Tensor]:
    """These tensors as [B, H, S, D]; they must be contiguous in the package's layout."""
    assert all(given[name].is_contiguous() for name in names)
    return [given[name].transpose(1, 2) for name in names]


def flash_forward(given: Arguments) -> tuple[torch.Tensor, torch.Tensor]:
    exact = compute_forward(
        *turned(given, "q", "k", "v"), bool(given.get("causal")), window_of(given), given.get("learnable_sink")
    )
    return exact.out.transpose(1, 2).to(given["q"].dtype).contiguous(), exact.lse.float()


def flash_gradients(given: Arguments, causal: bool) -> tuple[torch.Tensor, ...]:
    terms = Terms(window_of(given), given.get("learnable_sink"))
    assert given["out"].shape == given["dout"].shape
    found = compute_gradients(*turned(given, "q", "k", "v", "dout"), causal, terms)
    return tuple(x.transpose(1, 2).contiguous() if x.ndim == 4 else x for x in found)


def flash_attention_3() -> Any:
    """The module `flash_attn_interface`."""

    @signed(FA3_FORWARD)
    def forward(given: Arguments) -> Any:
        assert given["num_splits"] == 0
        assert given.get("window_size_right", 0) == 0
        none = torch.tensor([])
        return (*flash_forward(given), none, none)

    @signed(FA3_BACKWARD)
    def backward(given: Arguments) -> Any:
        assert given["softmax_lse"].shape == (given["q"].shape[0], given["q"].shape[2], given["q"].shape[1])
        for name, gradient in zip(("dq", "dk", "dv"), flash_gradients(given, given["is_causal"]), strict=True):
            given[name].copy_(gradient)
        return given["softmax_lse"]

    return SimpleNamespace(_flash_attn_forward=forward, _flash_attn_backward=backward)


def flash_attention_4() -> Any:
    """The module `flash_attn.cute.interface`; `splits` lists the numbers of parts that were asked for."""
    module = SimpleNamespace(splits=[])

    @signed(FA4_FORWARD)
    def forward(given: Arguments) -> Any:
        module.splits.append(given.get("num_splits", 1))
        out, lse = flash_forward(given)
        return (out, lse if given["return_lse"] else None, None, None, None)

    @signed(FA4_BACKWARD)
    def backward(given: Arguments) -> Any:
        assert given["lse"] is not None
        return flash_gradients(given, given["causal"])

    module._flash_attn_fwd, module._flash_attn_bwd = forward, backward
    return module


# cudnn-frontend: graphs of [B, H, S, D] by strides.


CUDNN_SDPA = (
    "q k v is_inference attn_scale bias block_mask use_alibi_mask use_padding_mask seq_len_q seq_len_kv use_causal_mask "
    "use_causal_mask_bottom_right sliding_window_length diagonal_alignment diagonal_band_left_bound "
    "diagonal_band_right_bound dropout rng_dump paged_attention_k_table paged_attention_v_table "
    "paged_attention_max_seq_len_kv max_total_seq_len_q max_total_seq_len_kv compute_data_type name score_mod "
    "generate_stats implementation score_max score_sum_exp sink_token unfuse_fma cu_seq_len_q cu_seq_len_kv "
    "stats_use_log2"
)
CUDNN_SDPA_BACKWARD = (
    "q k v o dO stats attn_scale bias dBias use_alibi_mask use_padding_mask seq_len_q seq_len_kv max_total_seq_len_q "
    "max_total_seq_len_kv use_causal_mask use_causal_mask_bottom_right sliding_window_length diagonal_alignment "
    "diagonal_band_left_bound diagonal_band_right_bound dropout rng_dump use_deterministic_algorithm compute_data_type "
    "name score_mod score_mod_bprop sink_token dSink_token"
)
CUDNN_GRAPH = (
    "name io_data_type intermediate_data_type compute_data_type handle sm_count sm_version kernel_cache device_property "
    "is_dynamic_shape_enabled is_override_shape_enabled cuda_graph_retention"
)
CUDNN_TENSOR = (
    "dim stride data_type is_virtual is_pass_by_value ragged_offset reordering_type name uid ragged_offset_multiplier "
    "alignment_value"
)
STEPS = ["validate", "build_operation_graph", "create_execution_plans", "check_support", "build_plans"]


class Slot:
    """A tensor of a graph."""

    def __init__(self, dim: Any = None, stride: Any = None, data_type: Any = None) -> None:
        self.dim, self.stride, self.data_type, self.is_output = dim, stride, data_type, False

    def set_output(self, is_output: bool) -> Slot:
        self.is_output = is_output
        return self

    def set_dim(self, dim: list[int]) -> Slot:
        self.dim = dim
        return self

    def set_stride(self, stride: list[int]) -> Slot:
        self.stride = stride
        return self

    def set_data_type(self, data_type: str) -> Slot:
        self.data_type = data_type
        return self

    def accepts(self, x: torch.Tensor) -> bool:
        return (list(x.shape), list(x.stride()), x.dtype) == (self.dim, self.stride, TYPES[self.data_type])


TYPES = {"HALF": torch.float16, "BFLOAT16": torch.bfloat16, "FLOAT": torch.float32}


def cudnn(*, sums_sinks: bool = False, refusal: str = "") -> Any:
    """The module `cudnn`. `streams` lists those that were set, `graphs` and
    `handles` those that were made. `sums_sinks`: the
    gradient of the sinks is added to what is there. `refusal`: what its check says of every graph."""
    module = SimpleNamespace(
        data_type=SimpleNamespace(**{name: name for name in TYPES}),
        diagonal_alignment=SimpleNamespace(TOP_LEFT="TOP_LEFT"),
        heur_mode=SimpleNamespace(A="A", FALLBACK="FALLBACK"),
        streams=[],
        graphs=[],
        handles=[],
        create_handle=lambda: module.handles.append("a handle") or "a handle",
        set_stream=lambda handle, stream: module.streams.append(stream),
        backend_version=lambda: 92000,
    )

    def make_graph(**options: Any) -> Graph:
        signed(CUDNN_GRAPH)(lambda _: None)(**options)
        module.graphs.append(Graph(sums_sinks, refusal))
        return module.graphs[-1]

    module.pygraph = make_graph
    return module


class Graph:
    """A graph with one operation."""

    selected_engine = None

    def __init__(self, sums_sinks: bool, refusal: str) -> None:
        self.sums_sinks, self.refusal = sums_sinks, refusal
        self.steps: list[str] = []
        self.given: Arguments = {}
        self.results: dict[str, Slot] = {}
        self.runs = 0

    def tensor(self, **options: Any) -> Slot:
        signed(CUDNN_TENSOR)(lambda _: None)(**options)
        return Slot(options["dim"], options["stride"], options["data_type"])

    def sdpa(self, **options: Any) -> Any:
        signed(CUDNN_SDPA)(self.given.update)(**options)
        self.results = {"o": Slot(), **({"stats": Slot()} if options["generate_stats"] else {})}
        return [self.results["o"], self.results.get("stats")]

    def sdpa_backward(self, **options: Any) -> Any:
        signed(CUDNN_SDPA_BACKWARD)(self.given.update)(**options)
        self.results = {name: Slot() for name in ("dQ", "dK", "dV")}
        return list(self.results.values())

    def __getattr__(self, name: str) -> Any:
        if name not in STEPS:
            raise AttributeError(name)

        def step(*_: Any) -> None:
            self.steps.append(name)
            if name == "check_support" and self.refusal:
                raise RuntimeError(self.refusal)

        return step

    def get_workspace_size(self) -> int:
        return 0

    def execute(self, slots: dict[Slot, torch.Tensor], workspace: torch.Tensor, handle: str) -> None:
        assert self.steps == STEPS
        assert (workspace.dtype, workspace.numel(), handle) == (torch.uint8, 1, "a handle")
        assert all(slot.accepts(x) for slot, x in slots.items())
        assert all(slot.is_output for slot in self.results.values())
        given = {name: slots[slot] for name, slot in self.given.items() if isinstance(slot, Slot)}
        results = {name: slots[slot] for name, slot in self.results.items()}
        assert len(given) + len(results) == len(slots)
        self.runs += 1
        scale = given["q"].shape[-1] ** -0.5
        causal = self.given.get("diagonal_band_right_bound") == 0
        assert self.given["attn_scale"] == scale
        assert (self.given.get("diagonal_alignment") == "TOP_LEFT") == causal
        sinks = given["sink_token"].reshape(-1) if "sink_token" in given else None
        terms = Terms(self.given.get("diagonal_band_left_bound") or 0, sinks)
        tensors = (given["q"], given["k"], given["v"])
        if "o" in results:
            exact = compute_forward(*tensors, causal, terms.window, sinks)
            results["o"].copy_(exact.out)
            if "stats" in results:
                results["stats"].copy_(exact.lse[..., None])
            return
        assert given["stats"].isfinite().all()
        *gradients, last = (*compute_gradients(*tensors, given["dO"], causal, terms), None)[
            : 4 if sinks is not None else 5
        ]
        for result, gradient in zip(results.values(), gradients, strict=False):
            result.copy_(gradient)
        if sinks is not None and last is not None:
            target = given["dSink_token"]
            target.copy_((target if self.sums_sinks else 0) + last.reshape(target.shape))


# FlashInfer: tokens [S, H, D], and pages of them.


RAGGED_MADE = (
    "float_workspace_buffer kv_layout use_cuda_graph qo_indptr_buf kv_indptr_buf custom_mask_buf mask_indptr_buf backend "
    "jit_args jit_kwargs variant_owns_mask"
)
RAGGED_PLAN = (
    "qo_indptr kv_indptr num_qo_heads num_kv_heads head_dim_qk head_dim_vo custom_mask packed_custom_mask causal "
    "pos_encoding_mode use_fp16_qk_reduction window_left logits_soft_cap sm_scale rope_scale rope_theta q_data_type "
    "kv_data_type"
)
RAGGED_RUN = "q k v *args q_scale k_scale v_scale out lse return_lse"
DECODE_MADE = "float_workspace_buffer kv_layout use_cuda_graph use_tensor_cores"
DECODE_PLAN = (
    "indptr indices last_page_len num_qo_heads num_kv_heads head_dim page_size pos_encoding_mode window_left "
    "logits_soft_cap q_data_type kv_data_type sm_scale"
)
DECODE_RUN = "q paged_kv_cache *args q_scale k_scale v_scale out lse return_lse"
SINKS_MADE = "float_workspace_buffer kv_layout backend q_data_type kv_data_type head_dim_qk head_dim_vo window_left"
SINKS_PLAN = (
    "qo_indptr paged_kv_indptr paged_kv_indices paged_kv_last_page_len num_qo_heads num_kv_heads head_dim_qk page_size "
    "head_dim_vo custom_mask packed_custom_mask causal sm_scale window_left q_data_type kv_data_type"
)


class Wrapper:
    """A wrapper of FlashInfer, with what it was made and planned with."""

    signatures = (RAGGED_MADE, RAGGED_PLAN, RAGGED_RUN)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.made: Arguments = {}
        self.planned: Arguments = {}
        signed(self.signatures[0])(self.made.update)(*args, **kwargs)
        assert self.made["kv_layout"] == "NHD"

    def plan(self, *args: Any, **kwargs: Any) -> None:
        assert not self.planned, "a case is planned once"
        signed(self.signatures[1])(self.planned.update)(*args, **kwargs)
        assert all(x.dtype == torch.int32 for x in self.planned.values() if isinstance(x, torch.Tensor))

    def run(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return signed(self.signatures[2])(self.compute)(*args, **kwargs)  # type: ignore[no-any-return]

    def compute(self, given: Arguments) -> torch.Tensor:
        queries, (k, v) = given["q"], self.keys(given)
        starts = self.planned.get("qo_indptr", torch.arange(len(queries) + 1))
        window, sinks = self.planned["window_left"] + 1, None
        if given.get("args"):
            sinks, scale = given["args"]
            assert scale == self.planned["sm_scale"]
        for n, (begin, end) in enumerate(zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)):
            q = queries[begin:end].transpose(0, 1)[None]
            exact = compute_forward(q, k[n], v[n], bool(self.planned.get("causal")), window, sinks)
            given["out"][begin:end].copy_(exact.out[0].transpose(0, 1))
        out: torch.Tensor = given["out"]
        return out

    def keys(self, given: Arguments) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """K and V of each sequence as [1, H, S, D]."""
        ends = self.planned["kv_indptr"].tolist()
        k, v = (
            [x[begin:end].transpose(0, 1)[None] for begin, end in itertools.pairwise(ends)]
            for x in (given["k"], given["v"])
        )
        return k, v


class PagedWrapper(Wrapper):
    """One whose keys are in pages."""

    signatures = (DECODE_MADE, DECODE_PLAN, DECODE_RUN)

    def keys(self, given: Arguments) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        starts, indices, last = (self.planned[name] for name in self.table)
        found: list[list[torch.Tensor]] = []
        for cache in given["paged_kv_cache"]:
            assert cache.shape[1] == self.planned["page_size"]
            found.append([])
            for n in range(len(starts) - 1):
                pages = cache[indices[starts[n] : starts[n + 1]]]
                length = (len(pages) - 1) * cache.shape[1] + int(last[n])
                found[-1].append(pages.flatten(0, 1)[:length].transpose(0, 1)[None])
        return found[0], found[1]

    table = ("indptr", "indices", "last_page_len")


class SinksWrapper(PagedWrapper):
    """One with sinks."""

    signatures = (SINKS_MADE, SINKS_PLAN, DECODE_RUN)
    table = ("paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len")


def flashinfer() -> Any:
    """The module `flashinfer`; `wrappers` lists those that were made."""
    wrappers: list[Wrapper] = []

    def making(kind: type[Wrapper]) -> Callable[..., Wrapper]:
        def make(*args: Any, **kwargs: Any) -> Wrapper:
            wrappers.append(kind(*args, **kwargs))
            return wrappers[-1]

        return make

    return SimpleNamespace(
        wrappers=wrappers,
        BatchPrefillWithRaggedKVCacheWrapper=making(Wrapper),
        BatchDecodeWithPagedKVCacheWrapper=making(PagedWrapper),
        BatchAttentionWithAttentionSinkWrapper=making(SinksWrapper),
    )

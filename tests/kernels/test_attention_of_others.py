"""Entries for attention of others: which case each takes, or refuses and why, and that each passes it on as it is."""

from __future__ import annotations

import functools
import inspect
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml

from kernels.attention.case import Case, Shape
from kernels.attention.interface import Unavailable
from kernels.attention.problem import AttentionProblem, Inputs
from kernels.attention.registry import REGISTRY
from kernels.attention.rivals import cudnn, flash, flashinfer, flex
from kernels.attention.rivals.package import Package, Rival, translate_errors
from kernels.attention.workload import WORKLOAD
from kernels.harness.workload import Site
from orchestrator.core import bundled
from orchestrator.core.config.model import harness_shapes, resolve_grid
from tests.kernels import played_rivals as played
from tests.kernels.harness_process import ROOT, HarnessProcess, named, shape, spec

PLAIN = Shape(2, 4, 2, 33, 33, 16, True)
FULL = replace(PLAIN, causal=False, seq_k=40)
WINDOWED = replace(PLAIN, window=7)
SINKS = replace(WINDOWED, sinks=True)
WIDE = replace(PLAIN, head_dim=24, value_dim=16)
DECODING = replace(PLAIN, seq_q=1, seq_k=37, causal=False, heads=8)
UNEQUAL = replace(PLAIN, seq_q=20)
DROPPING = replace(PLAIN, dropout=0.1)
HOPPER = (9, 0)
FA3, FA4, FLEX = flash.FLASH_ATTENTION_3, flash.FLASH_ATTENTION_4, flex.FLEX_ATTENTION
CUDNN, INFER = cudnn.CUDNN_FRONTEND, flashinfer.FLASHINFER
ENTRIES = {"fa3": FA3, "fa4": FA4, "flex": FLEX, "cudnn-frontend": CUDNN, "flashinfer": INFER}


def made(of: Shape, direction: str = "forward", dtype: str = "bfloat16") -> tuple[Case, Inputs]:
    case = Case(of, dtype, direction)
    return case, AttentionProblem().inputs(case, torch.Generator().manual_seed(1))


BOTTOM_RIGHT, FORWARD = "aligns a causal mask bottom-right", "is called here forward only"
TAKEN = [
    (PLAIN, "forward", {}),
    (FULL, "forward", {}),
    (WIDE, "forward", {}),
    (PLAIN, "backward", {"flex": FORWARD, "flashinfer": FORWARD}),
    (PLAIN, "both", {"flex": FORWARD, "flashinfer": FORWARD}),
    (WINDOWED, "forward", {}),
    (SINKS, "forward", {"fa3": "without sinks", "flex": "without sinks"}),
    (SINKS, "backward", {"fa3": "without sinks", "flex": FORWARD, "flashinfer": FORWARD}),
    (replace(WIDE, window=7, sinks=True), "forward", {"fa3": "sinks", "flex": "sinks", "flashinfer": "one width"}),
    (DECODING, "forward", {}),
    (replace(DECODING, value_dim=8), "forward", {"flashinfer": "in pages of one width"}),
    (UNEQUAL, "forward", {"fa3": BOTTOM_RIGHT, "fa4": BOTTOM_RIGHT, "flashinfer": BOTTOM_RIGHT}),
    (replace(FULL, seq_q=50), "forward", {}),
    (DROPPING, "forward", dict.fromkeys(ENTRIES, "without dropout by a seeded counter")),
]


@pytest.mark.parametrize(("of", "direction", "refusals"), TAKEN)
def test_each_entry_takes_a_case_or_names_what_it_lacks(of: Shape, direction: str, refusals: dict[str, str]) -> None:
    for name, package in ENTRIES.items():
        refusal = package.refuse(Case(of, "bfloat16", direction), HOPPER)
        if name in refusals:
            assert refusal is not None, name
            assert refusals[name] in refusal
            assert refusal.startswith(package.name)
        else:
            assert refusal is None, name


@pytest.mark.parametrize(
    ("chip", "refusing"),
    [
        ((7, 0), {"fa3": "8.0 to 9.0", "fa4": "8.0 or newer", "cudnn-frontend": "8.0 or newer", "flashinfer": "7.5"}),
        ((7, 5), {"fa3": "8.0 to 9.0", "fa4": "8.0 or newer", "cudnn-frontend": "8.0 or newer"}),
        ((8, 9), {}),
        ((9, 0), {}),
        ((10, 0), {"fa3": "needs compute capability 8.0 to 9.0, and this device has 10.0"}),
        ((12, 1), {"fa3": "8.0 to 9.0"}),
    ],
)
def test_each_entry_names_the_chips_that_it_needs(chip: tuple[int, int], refusing: dict[str, str]) -> None:
    refusals = {name: package.refuse(Case(PLAIN, "float16"), chip) for name, package in ENTRIES.items()}
    assert {name for name, refusal in refusals.items() if refusal} == set(refusing)
    assert all(words in str(refusals[name]) for name, words in refusing.items())


def test_elements_of_32_bits_and_devices_without_cuda_are_refused() -> None:
    refusals = {name: package.refuse(Case(PLAIN, "float32"), HOPPER) for name, package in ENTRIES.items()}
    assert refusals.pop("flex") is None
    assert all(str(refusal).endswith("has no float32") for refusal in refusals.values())
    for package in ENTRIES.values():
        assert package.refuse(Case(PLAIN, "float16"), None) == f"{package.name} needs a CUDA device"


def test_the_client_knows_the_entries_of_the_harness(tmp_path: Path) -> None:
    assert {name.partition(":")[0] for name in bundled.OTHERS_INSTALLED} == set(ENTRIES)
    assert set(bundled.CHOICES) == set(REGISTRY.shown())
    assert not set(bundled.IMPLEMENTATIONS) & set(bundled.OTHERS_INSTALLED)
    site = Site(torch.device("cpu"), 1, tmp_path, tmp_path)
    for name in bundled.OTHERS_INSTALLED:
        entry = REGISTRY.find(name)
        assert entry is not None
        rival = entry.make()(name, site)
        assert isinstance(rival, Rival)
        assert rival.package is ENTRIES[name.partition(":")[0]]
        with pytest.raises(Unavailable, match="needs a CUDA device"):
            rival.bind(*made(PLAIN))


def test_the_harness_gives_each_entry_a_row_with_the_reason(tmp_path: Path) -> None:
    asked = spec(
        implementations=["sdpa:math", *bundled.OTHERS_INSTALLED],
        measure={"shapes": [shape(9, causal=True)], "dtypes": ["float32"]},
        repeats=2,
    )
    with HarnessProcess("measure", asked, tmp_path) as harness:
        _, facts = harness.finish()
    (case,) = named(facts, "case_finished")
    assert set(case["median_us"]) == {"sdpa:math"}
    assert set(case["skipped"]) == set(bundled.OTHERS_INSTALLED)
    assert all("needs a CUDA device" in reason for reason in case["skipped"].values())


def test_a_small_case_of_each_preset_is_measured_on_a_processor_or_has_a_reason(tmp_path: Path) -> None:
    shapes = []
    for case in preset_cases():
        s = case.shape
        small = {"batch": 1, "heads": s.heads // 8, "kv_heads": max(1, s.kv_heads // 8), "seq_q": 20, "seq_k": 20}
        small |= {"head_dim": s.head_dim, "causal": s.causal, "pass": case.direction}
        small |= {"value_dim": s.value_dim} if s.value_dim else {}
        small |= {"window": 7} if s.window else {}
        small |= {"sinks": True} if s.sinks else {}
        shapes += [] if small in shapes else [small]
    names = ["bench", "sdpa:math", "cudnn-frontend"]
    asked = spec(implementations=names, measure={"shapes": shapes, "dtypes": ["bfloat16"]}, repeats=2)
    with HarnessProcess("measure", asked, tmp_path) as harness:
        code, facts = harness.finish()
    assert code == 0, harness.log()
    cases = named(facts, "case_finished")
    assert len(cases) == len(shapes) == 12
    for case in cases:
        assert set(case["median_us"]) | set(case["skipped"]) == set(names)
        assert ("sdpa:math" in case["median_us"]) == ("-w7" not in case["case_id"])


# What is not installed, or is something else.


def absent(package: Package, **changes: Any) -> Package:
    return replace(package, module="no_such_package.attention", **changes)


@pytest.mark.parametrize("name", ENTRIES)
def test_what_is_not_installed_is_named_with_the_command_that_installs_it(name: str) -> None:
    package = ENTRIES[name]
    assert package.install.startswith("pip install ")
    with pytest.raises(Unavailable) as refused:
        absent(package).load()
    assert str(refused.value) == f"{package.name} is not installed: {package.install}"
    assert len(str(refused.value)) <= 200


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the played_package that is installed has no attend: pip install played"),
        ("import no_such_library", "played does not import: ModuleNotFoundError: No module named 'no_such_library'"),
        ("raise OSError('libcudart.so.14:\\ncannot open')", "played does not import: OSError: libcudart.so.14:"),
        ("raise SystemError", "played does not import: SystemError"),
        ("attend = 1", None),
    ],
)
def test_a_package_that_is_broken_or_another_is_refused(
    text: str, reason: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "played_package.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "played_package", raising=False)
    package = Package("played", "played_package", "played-package", "pip install played", ("attend",))
    if reason is None:
        assert package.load().attend == 1
    else:
        with pytest.raises(Unavailable, match=re.escape(reason)):
            package.load()
    assert package.title == "played"


def test_an_error_of_a_package_is_one_line_of_its_own_words() -> None:
    for error, words in ((RuntimeError("no plan\nat line 3"), "no plan"), (AssertionError(), "AssertionError")):
        with pytest.raises(Unavailable) as refused, translate_errors("it"):
            raise error
        assert str(refused.value) == f"it: {words}"
    with pytest.raises(Unavailable) as refused, translate_errors("it"):
        raise ValueError("x" * 900)
    assert len(str(refused.value)) == 200


# Each passes a case on as it is: played packages compute with the reference, by the arguments of the real ones.


def answer(rival: Rival, module: Any, of: Shape, direction: str, dtype: str = "bfloat16") -> str:
    """Why the answers of three calls fail; empty if they pass. Two sets of inputs take turns."""
    case, first = made(of, direction, dtype)
    second = AttentionProblem().inputs(case, torch.Generator().manual_seed(2))
    problem = AttentionProblem()
    with torch.inference_mode():
        calls = [(rival.call(module, case, given), problem.yardstick(case, given, 0.02)) for given in (first, second)]
        verdicts = [by.judge(call.output(call.plan())) for call, by in (*calls, calls[0])]
    return "".join(verdict.reason for verdict in verdicts if not verdict.passed)


MADE = {
    "fa3": (flash.FlashAttention3, played.flash_attention_3),
    "fa4": (flash.FlashAttention4, played.flash_attention_4),
    "cudnn-frontend": (cudnn.CudnnFrontend, played.cudnn),
    "flashinfer": (flashinfer.FlashInfer, played.flashinfer),
}


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize(("of", "direction", "refusals"), TAKEN)
def test_each_entry_gives_the_right_answer_where_its_package_does(
    name: str, of: Shape, direction: str, refusals: dict[str, str]
) -> None:
    if name in refusals:
        return
    rival, module = (make() for make in MADE[name])
    assert answer(rival, module, of, direction) == ""
    assert answer(rival, module, replace(of, batch=3), direction, "float16") == "", "the next case is planned anew"


@pytest.mark.parametrize("sums", [False, True])
def test_the_gradient_of_sinks_is_right_whether_or_not_it_is_added_to_what_is_there(sums: bool) -> None:
    for direction in ("backward", "both"):
        assert answer(cudnn.CudnnFrontend(), played.cudnn(sums_sinks=sums), SINKS, direction) == ""


def test_cudnn_builds_the_graphs_of_a_case_once_and_sets_the_stream_at_each_call() -> None:
    rival, module = cudnn.CudnnFrontend(), played.cudnn()
    assert answer(rival, module, PLAIN, "both") == ""
    assert [graph.steps for graph in module.graphs] == [played.STEPS] * 2
    runs = [graph.runs for graph in module.graphs]
    assert runs == [2 + 3, 3]
    assert len(module.streams) == sum(runs)


def test_a_graph_that_cudnn_refuses_is_refused_in_its_words_and_leaves_one_handle() -> None:
    rival, module = cudnn.CudnnFrontend(), played.cudnn(refusal="s_q = s_kv = 1 is not supported.\n")
    for _ in range(2):
        words = r"cudnn-frontend: s_q = s_kv = 1 is not supported\."
        with pytest.raises(Unavailable, match=words), translate_errors(CUDNN.name):
            rival.call(module, *made(PLAIN))
    assert module.handles == ["a handle"]


def test_flash_attention_4_splits_the_keys_if_that_is_asked_for(tmp_path: Path) -> None:
    for name, parts in (("fa4", {1}), ("fa4:split", {0})):
        module, site = played.flash_attention_4(), Site(torch.device("cpu"), 1, tmp_path, tmp_path)
        rival: Any = flash.fa4_implementation(name, site)
        assert answer(rival, module, DECODING, "forward") == ""
        assert set(module.splits) == parts
        assert rival.call(module, *made(DECODING)).backend == ("" if parts == {1} else " split")


@pytest.mark.parametrize(("heads", "tensor_cores"), [(2, False), (4, False), (8, True)])
def test_flashinfer_decodes_heads_that_share_a_key_by_tensor_cores(heads: int, tensor_cores: bool) -> None:
    rival, module = flashinfer.FlashInfer(), played.flashinfer()
    assert answer(rival, module, replace(DECODING, heads=heads), "forward") == ""
    (wrapper,) = module.wrappers
    assert wrapper.made["use_tensor_cores"] is tensor_cores
    assert wrapper.planned["last_page_len"].tolist() == [5, 5]


@pytest.mark.parametrize("seq_k", [1, 15, 16, 17, 32])
def test_flashinfers_pages_hold_every_length(seq_k: int) -> None:
    assert answer(flashinfer.FlashInfer(), played.flashinfer(), replace(DECODING, seq_k=seq_k), "forward") == ""


@pytest.mark.parametrize("window", [0, 1, 3, 40])
def test_flexs_mask_is_that_of_the_reference(window: int) -> None:
    rows, keys = torch.arange(9)[:, None], torch.arange(12)[None]
    seen = flex.make_mask(window)(None, None, rows, keys)
    assert torch.equal(seen, (keys <= rows) & ((keys > rows - window) if window else True))


# The played packages take what the real ones take, wherever these are installed.


def names_of(function: Any) -> list[str]:
    """The names of a function's parameters, without `self`."""
    parameters = inspect.signature(getattr(function, "_init_fn", function)).parameters.values()
    return [("*" if one.kind is one.VAR_POSITIONAL else "") + one.name for one in parameters if one.name != "self"]


def assert_accepts(real: list[str], played_names: str) -> None:
    """That the played names are among the real ones, in their order."""
    remaining = iter(real)
    assert all(name in remaining for name in played_names.split()), (real, played_names)


def test_flash_attention_3_has_the_played_signatures() -> None:
    module = pytest.importorskip(FA3.module, exc_type=ImportError)
    assert_accepts(names_of(module._flash_attn_forward), played.FA3_FORWARD)
    assert_accepts(names_of(module._flash_attn_backward), played.FA3_BACKWARD)


def test_flash_attention_4_has_the_played_signatures() -> None:
    module = pytest.importorskip(FA4.module, exc_type=ImportError)
    assert_accepts(names_of(module._flash_attn_fwd), played.FA4_FORWARD)
    assert_accepts(names_of(module._flash_attn_bwd), played.FA4_BACKWARD)


def test_flashinfer_has_the_played_signatures() -> None:
    module = pytest.importorskip(INFER.module, exc_type=ImportError)
    kinds = zip(INFER.names, (played.Wrapper, played.PagedWrapper, played.SinksWrapper), strict=True)
    for name, kind in kinds:
        real = getattr(module, name)
        methods = (real.__init__, getattr(real, "_plan_impl", real.plan), real.run)
        for method, signature in zip(methods, kind.signatures, strict=True):
            assert_accepts(names_of(method), signature)


def test_cudnn_has_the_played_signatures_and_accepts_the_graph_of_every_case() -> None:
    module = pytest.importorskip(CUDNN.module, exc_type=ImportError)
    CUDNN.load()
    native = module._pybind_module.backend_graph
    for method, signature in ((native.sdpa, played.CUDNN_SDPA), (native.sdpa_backward, played.CUDNN_SDPA_BACKWARD)):
        assert_accepts(re.findall(r"[(,] ?(\w+):", method.__doc__.split("->")[0]), signature)
    assert_accepts(names_of(module.pygraph.__init__), played.CUDNN_GRAPH)
    assert_accepts(names_of(module.pygraph.tensor), played.CUDNN_TENSOR)
    cases = [Case(of, "bfloat16", direction) for of, direction, refusals in TAKEN if "cudnn-frontend" not in refusals]
    for case in [*cases, *preset_cases()]:
        for interface in (module, classic(module)):
            cudnn.forward_graph(interface, None, case).graph.validate()
            if case.direction != "forward":
                cudnn.backward_graph(interface, None, case).graph.validate()


def classic(module: Any) -> Any:
    """cudnn-frontend's compiled interface, which is all that older versions have, for a Hopper chip."""
    make = functools.partial(module._pybind_module.backend_graph, sm_version=90)
    return SimpleNamespace(data_type=module.data_type, diagonal_alignment=module.diagonal_alignment, pygraph=make)


def preset_cases() -> list[Case]:
    """The cases of NVIDIA's presets."""
    grids = yaml.safe_load((ROOT / "configs" / "grids.yaml").read_text(encoding="utf-8"))
    presets = [
        resolve_grid(name, grids) for name in ("llama3.1", "llama3.1-8b", "deepseek-v3", "gpt-oss", "gpt-oss-sinks")
    ]
    return [
        case
        for grid in presets
        for case in WORKLOAD.cases({"shapes": harness_shapes(grid), "dtypes": list(grid.dtypes)}, "measure")
    ]


def test_each_case_of_nvidias_presets_has_a_rival_beside_the_bundled_kernel() -> None:
    takers = {
        case.id: {name for name, one in ENTRIES.items() if not one.refuse(case, HOPPER)} for case in preset_cases()
    }
    assert len(takers) == 56
    assert all({"fa4", "cudnn-frontend"} <= names for names in takers.values())
    assert all(("fa3" in names) == ("sinks" not in case_id) for case_id, names in takers.items())
    assert all(("flashinfer" in names) == ("backward" not in case_id) for case_id, names in takers.items())

"""PyTorch's backends: pinned ones really are, the default says what it went to, absent ones say why."""

from __future__ import annotations

import pytest
import torch

from kernels.attention.baseline import NAMES, Sdpa, chosen_backend, dispatched_backend, refusal_reason
from kernels.attention.interface import Unavailable
from tests.kernels.problems import problem

ON_CPU = ("default", "flash", "math")


@pytest.mark.parametrize("name", ON_CPU)
@pytest.mark.parametrize("causal", [False, True])
def test_each_backend_of_this_device_answers_rightly_with_shared_heads(name: str, causal: bool) -> None:
    p = problem(batch=2, heads=4, kv_heads=2, seq_q=20, seq_k=30, head_dim=16, causal=causal)
    baseline = Sdpa(name)
    plan = baseline.prepare(p.q, p.k, p.v, causal)
    with baseline.scope():
        out = plan()
    k, v = (x.repeat_interleave(2, 1) for x in (p.k, p.v))
    exact = torch.nn.functional.scaled_dot_product_attention(p.q.double(), k.double(), v.double(), is_causal=causal)
    torch.testing.assert_close(out.double(), exact, rtol=0, atol=1e-5)


def test_a_pinned_backend_is_the_one_that_pytorch_would_choose_within_its_scope() -> None:
    p = problem()
    with Sdpa("math").scope():
        assert Sdpa("default").resolved(p.q, p.k, p.v, False) == "default:math"
    assert Sdpa("default").resolved(p.q, p.k, p.v, False) == "default:flash"
    assert Sdpa("math").resolved(p.q, p.k, p.v, False) == "math"


@pytest.mark.parametrize("inference", [True, False])
@pytest.mark.parametrize("name", ["flash", "math"])
def test_which_backend_ran_is_read_off_the_operators_that_ran(name: str, inference: bool) -> None:
    with torch.inference_mode(inference):
        p = problem(heads=4, kv_heads=2)
        baseline = Sdpa(name)
        with baseline.scope():
            assert dispatched_backend(lambda: baseline.prepare(p.q, p.k, p.v, True)) == name
            assert Sdpa("default").resolved(p.q, p.k, p.v, True) == f"default:{name}"


def test_where_the_operators_do_not_tell_pytorchs_own_word_is_taken() -> None:
    p = problem()
    twice = [Sdpa("flash"), Sdpa("math")]

    def both() -> None:
        for baseline in twice:
            with baseline.scope():
                torch.nn.functional.scaled_dot_product_attention(p.q, p.k, p.v)

    with torch.inference_mode():
        assert dispatched_backend(both) == ""
    assert dispatched_backend(lambda: p.q + 1) == ""
    assert dispatched_backend(lambda: Sdpa("cudnn").prepare(p.q, p.k, p.v, False)) == ""
    assert chosen_backend(p.q, p.k, p.v, False, None) == "flash"


@pytest.mark.parametrize("name", ["efficient", "cudnn"])
def test_a_backend_that_this_device_lacks_is_unavailable_with_pytorchs_words(name: str) -> None:
    p = problem()
    with pytest.raises(Unavailable, match=f"{name}: No viable backend"):
        Sdpa(name).prepare(p.q, p.k, p.v, False)


def test_an_unknown_backend_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="default, flash, efficient, cudnn, math"):
        Sdpa("fastest")
    assert NAMES == ("default", "flash", "efficient", "cudnn", "math")


def test_of_pytorchs_many_warnings_the_cause_is_kept_in_one_short_line() -> None:
    told = [
        "Flash attention kernel not used because: (Triggered internally at /build/sdp_utils.cpp:12.)",
        """Flash attention only supports gpu architectures in the range [sm80, sm121].
        This is an sm 7.5 gpu. (Triggered internally at /build/sdp_utils.cpp:34.)""",
    ]
    words = refusal_reason("flash", "No available kernel. Aborting execution.", told)
    assert words.startswith("Flash attention only supports gpu architectures in the range [sm80, sm121]")
    assert words.endswith("sm 7.5 gpu")
    assert "\n" not in words
    assert "cpp" not in words
    assert refusal_reason("flash", "No available kernel. Aborting execution.", []) == "No available kernel"
    long = "Both fused kernels require the same num_heads. Query.sizes(): " + "[2, 16, 512, 64], " * 20
    assert refusal_reason("flash", "No available kernel.", [long]) == "Both fused kernels require the same num_heads"
    assert len(refusal_reason("flash", "No available kernel.", ["x" * 500])) == 160


TOLD = [
    "Memory efficient kernel not used because: (Triggered internally at sdp_utils.cpp:1.)",
    "Memory Efficient attention has been runtime disabled. (Triggered internally at sdp_utils_cpp.h:552.)",
    "Flash attention kernel not used because: (Triggered internally at sdp_utils.cpp:2.)",
    "Expected query, key and value to all be of dtype: {Half, BFloat16}. Got Query dtype: float instead.",
    "cuDNN attention kernel not used because: (Triggered internally at sdp_utils.cpp:3.)",
    "cuDNN attention has been runtime disabled. (Triggered internally at sdp_utils.cpp:4.)",
]


def test_the_reason_is_the_backends_own_and_not_what_was_said_first() -> None:
    assert refusal_reason("flash", "No available kernel.", TOLD).startswith(
        "Expected query, key and value to all be of dtype"
    )
    for other in ("efficient", "cudnn"):
        assert refusal_reason(other, "No available kernel. Aborting execution.", TOLD) == "No available kernel"
    turned = [words.replace("Flash attention", "cuDNN attention") for words in TOLD[:4]]
    assert refusal_reason("cudnn", "No available kernel.", turned).startswith("Expected query")

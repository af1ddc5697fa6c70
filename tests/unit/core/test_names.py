"""The implementations that a configuration may name are those that the harness has."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kernels.attention.registry import REGISTRY
from orchestrator.core.bundled import CHOICES, IMPLEMENTATIONS, VARIANTS, is_implementation, is_kernel

ENDS = ("", ":lse", "@sm_80", "@sm_90:lse", "@sm_1", ":lse@sm_80", ":default", ":math", ":aa", ":", "@", "\n", ":lse\n")
names = st.builds(str.__add__, st.sampled_from((*VARIANTS, "FA4", "fa", "")), st.sampled_from(ENDS))


@given(names | st.text(max_size=12))
def test_the_harness_has_each_and_no_other(name: str) -> None:
    assert is_implementation(name) == (REGISTRY.find(name) is not None)
    entry = REGISTRY.find(name)
    assert is_kernel(name) == (entry is not None and entry.name == "bench")


def test_what_a_message_lists_is_what_there_is() -> None:
    assert {name: entry.variants for name, entry in REGISTRY.entries.items()}.keys() == VARIANTS.keys()
    assert sorted(CHOICES) == sorted(REGISTRY.shown())
    assert set(IMPLEMENTATIONS) <= set(CHOICES)

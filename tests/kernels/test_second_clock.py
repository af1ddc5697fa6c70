"""What CUPTI's activities come to, and which implementation gets the second control."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kernels.harness.controls import COMPARABLE, Cost, slowest_launcher
from kernels.harness.cupti import CALLS, Activity, cells, sampled, shared_out, told

LENGTHS = st.lists(st.integers(1000, 10**7), min_size=1, max_size=5)


@given(st.lists(LENGTHS, min_size=1, max_size=9), st.integers(0, 500))
def test_a_call_is_what_lies_between_one_spin_and_the_next(calls: list[list[int]], gap: int) -> None:
    activities, at = [Activity("memset of before", 0, 10)], 100
    for number, lengths in enumerate(calls):
        activities.append(Activity("void at::spin_kernel(long)", at, 10**6))
        at += 10**6 + 50_000
        for kernel, length in enumerate(lengths):
            activities.append(Activity(f"kernel_{kernel}", at, length))
            at += length + gap
        activities.append(Activity("Context Sync", at, 10**6))
        at += 10**7 + number
    found = told(activities)
    assert found is not None
    spans = sorted((sum(own) + gap * (len(own) - 1)) / 1000 for own in calls)
    assert found.calls == len(calls)
    assert spans[0] <= found.span_us <= spans[-1]
    if len(spans) % 2:
        assert abs(found.span_us - spans[len(spans) // 2]) < 1e-6
    assert found.kernel_us <= found.span_us + 1e-6
    assert found.kernels[0] == "kernel_0"
    assert not any("spin" in name or "Sync" in name for name in found.kernels)


def test_a_trace_without_kernels_says_nothing() -> None:
    assert told([]) is None
    assert told([Activity("void at::spin_kernel(long)", 0, 10)]) is None
    assert told([Activity("kernel before any spin", 0, 10)]) is None


def test_a_row_has_cuptis_times_beside_ours_and_short_names() -> None:
    found = told([Activity("spin_kernel", 0, 10), Activity("void big<128, 4>(float*, int)", 20, 5000)])
    assert found is not None
    assert cells(found, {"burst": 7.25, "graph": float("nan")}) == {
        "calls": "1", "cupti_us": "5.000", "cupti_kernel_us": "5.000", "cupti_busy_us": "", "kernels": "void_big<128,_4>", "burst_us": "7.250",
    }  # fmt: skip


@given(st.lists(st.integers(1000, 10**7), min_size=1, max_size=5), st.data())
def test_calls_in_turns_are_shared_out_to_whose_they_are(lengths: list[int], data: st.DataObject) -> None:
    names = [f"way {number}" for number in range(len(lengths))]
    activities, at = [], 0
    for _ in range(CALLS):
        for name, length in zip(names, lengths, strict=True):
            activities += [Activity("spin_kernel", at, 10), Activity(name, at + 20, length)]
            at += 10**8
    assert shared_out(names, activities) == {name: length / 1000 for name, length in zip(names, lengths, strict=True)}
    del activities[data.draw(st.integers(0, len(activities) - 1))]
    assert shared_out(names, activities) == {}


@given(st.integers(0, 200), st.integers(2, 12))
def test_the_sample_is_spread_over_the_grid_from_its_first_case_to_its_last(count: int, most: int) -> None:
    cases = list(range(count))
    chosen = sampled(cases, most)
    assert len(chosen) == min(count, most)
    assert chosen == sorted(set(chosen))
    if count:
        assert {chosen[0], chosen[-1]} == {cases[0], cases[-1]}


@given(
    st.lists(st.tuples(st.floats(1, 500), st.floats(1, 5000)), min_size=1, max_size=8, unique=True),
    st.sets(st.integers(0, 7)),
)
def test_the_second_control_is_on_the_longest_launch_among_those_of_comparable_speed(
    costs: list[tuple[float, float]], have: set[int]
) -> None:
    made = [Cost(str(n), host, whole) for n, (host, whole) in enumerate(costs)]
    chosen = slowest_launcher(made, frozenset(map(str, have)))
    least = min(one.whole_us for one in made)
    near = [one for one in made if one.whole_us <= COMPARABLE * least]
    longest = max(one.host_us for one in near)
    if chosen is None:
        assert any(one.host_us == longest and int(one.implementation) in have for one in near)
    else:
        (one,) = (one for one in made if one.implementation == chosen)
        assert one in near
        assert one.host_us == longest
        assert int(chosen) not in have
    assert slowest_launcher([], frozenset()) is None

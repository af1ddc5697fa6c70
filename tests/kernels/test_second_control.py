"""Which implementation gets the second control."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kernels.harness.controls import COMPARABLE, Cost, slowest_launcher


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

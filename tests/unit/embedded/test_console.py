"""The serial port's ring: nothing is read twice, and what is lost is known to be."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.embedded.console import Console


@given(st.lists(st.binary(max_size=30), max_size=20), st.integers(min_value=1, max_value=64))
def test_the_ring_holds_the_last_bytes_and_says_where_they_begin(pieces: list[bytes], capacity: int) -> None:
    console = Console(capacity)
    for piece in pieces:
        console.write(piece)
    written = b"".join(pieces)
    assert bytes(console.kept) == written[-capacity:][:capacity]
    output = console.read(0)
    assert output.start == max(0, len(written) - capacity)
    assert output.next <= len(written)


@given(st.lists(st.text(max_size=10), max_size=20))
def test_read_on_from_next_every_character_comes_once_and_whole(pieces: list[str]) -> None:
    console = Console()
    data = "".join(pieces).encode()
    read, position = "", 0
    for cut in range(0, len(data), 3):
        console.write(data[cut : cut + 3])
        output = console.read(position)
        read, position = read + output.contents, output.next
    assert read == "".join(pieces)
    assert position == len(data)


def test_a_negative_start_counts_from_the_end() -> None:
    console = Console()
    console.write(b"hello")
    assert console.read(-2).contents == "lo"
    assert console.read(-99).contents == "hello"
    assert console.read(99) == console.read(5)
    assert console.read(5).contents == ""

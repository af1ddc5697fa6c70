"""Numbers and sentences as people read them, in messages, tables and pages alike."""

from __future__ import annotations


def count(number: int, one: str, many: str = "") -> str:
    """`1 run`, `2 runs`, `1,024 cases`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def clock(seconds: float) -> str:
    """A time without its fraction: `0:42`, `12:05`, `2:03:04`."""
    minutes, rest = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def begun(words: str) -> str:
    """As a sentence begins: the first letter is a capital, the others stay as they are."""
    return f"{words[:1].upper()}{words[1:]}"

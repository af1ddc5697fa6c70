"""Writes numbers and sentences for people, in messages, tables and pages."""

from __future__ import annotations


def count(number: int, one: str, many: str = "") -> str:
    """A number with its noun: `1 run`, `2 runs`, `1,024 cases`. `many` is the plural if it is not `one` with an s."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def clock(seconds: float) -> str:
    """Seconds as a time, without the fraction: `0:42`, `12:05`, `2:03:04`."""
    minutes, rest = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def begun(words: str) -> str:
    """`words` as the beginning of a sentence: the first letter becomes a capital, the others do not change."""
    return f"{words[:1].upper()}{words[1:]}"

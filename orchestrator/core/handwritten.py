"""Reads a text file that the user named. It must be UTF-8 and of limited size.

A user may name a data set, a device or an endless pipe by mistake. Every such file is read here, so that one rule
limits how much is read.
"""

from __future__ import annotations

from typing import IO, Final

MOST_YAML: Final = 128 << 10
"""The most bytes of a configuration, a sweep or a description. The longest that comes with the tool has 7 KB."""
MOST_SOURCE: Final = 20 << 20
"""The most bytes of any other file, such as a source or a page."""


def text(file: IO[bytes], most: int = MOST_YAML) -> str:
    """The text of an open file, with `\\n` as line end. Raises `OSError`, and `ValueError` if the file has more than
    `most` bytes or is not UTF-8."""
    data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(too_long(most))
    try:
        return data.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError:
        raise ValueError("not UTF-8 text") from None


def too_long(most: int) -> str:
    return f"it has more than {most >> 20} MB" if most >= 1 << 20 else f"it has more than {most >> 10} KB"


def why(error: Exception) -> str:
    """The reason why a file cannot be read, from its error."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)

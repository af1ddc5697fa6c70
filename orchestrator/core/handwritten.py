"""Reads a text file that the user named: UTF-8, and not longer than people write.

A user may name a data set, a device or an endless pipe by mistake. Every such file is read here, so that one rule says
how much of it is read.
"""

from __future__ import annotations

from typing import IO, Final

MOST_YAML: Final = 128 << 10
"""Bytes of a configuration, a sweep, a description. The longest that comes with the tool has 7 KB."""
MOST_SOURCE: Final = 20 << 20
"""Bytes of anything else: a source, a page."""


def text(file: IO[bytes], most: int = MOST_YAML) -> str:
    """What stands in an open file. Raises `OSError`, and `ValueError` for what no person wrote."""
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
    """Why a file cannot be read, in a few words."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)

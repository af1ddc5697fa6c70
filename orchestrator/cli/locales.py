"""Text for terminals and pipes whose locale lacks some of our characters, as ISO-8859-1 and C without UTF-8 do."""

from __future__ import annotations

import codecs
import io
from collections.abc import Mapping
from typing import Final

HANDLER: Final = "spotbench"
INSTEAD: Final[Mapping[str, str]] = {
    "×": "x", "µ": "u", "…": "...", "→": "->", "·": "-", "±": "+-", "≤": "<=", "≥": ">=", "–": "-", "—": "-",
    "−": "-", "━": "-", "╸": "-", "╺": "-", "✓": "+", "✗": "x",
}  # fmt: skip
"""What is written for a character that the locale does not have; for any other it is a question mark."""


def instead(error: UnicodeError) -> tuple[str, int]:
    """The characters that could not be written, in ASCII, and where to go on."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(INSTEAD.get(one, "?") for one in error.object[error.start : error.end]), error.end


def in_any_locale(*streams: object) -> None:
    """Has the streams write what their encoding lacks in ASCII, where they would raise."""
    codecs.register_error(HANDLER, instead)
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=HANDLER)

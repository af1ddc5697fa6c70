"""Output for terminals and pipes whose locale lacks some of bench's characters, such as ISO-8859-1 or plain C."""

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
"""The replacements for characters that a locale may lack; any other such character becomes a question mark."""


def instead(error: UnicodeError) -> tuple[str, int]:
    """The replacement in ASCII for characters that could not be written, and the position at which to continue."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(INSTEAD.get(one, "?") for one in error.object[error.start : error.end]), error.end


def in_any_locale(*streams: object) -> None:
    """Makes the streams write characters that their encoding lacks in ASCII instead of raising."""
    codecs.register_error(HANDLER, instead)
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=HANDLER)

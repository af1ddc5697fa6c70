"""Cleans text that somebody else wrote: a machine, a host, an object in the bucket.

Such text is only data. It is cleaned once, where it enters (events, index lines, logs, host records, answers of hosts,
artifacts), so that no renderer needs to do it: control and escape sequences become visible text, and lengths are
bounded. Renderers print it as text, not as their own markup. Numbers and times are bounded by the types of
`orchestrator.core.bounds`.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping
from typing import Any, Final

WORDS: Final = 2000
"""The most characters of one text in a document."""
NAME: Final = 120
"""The most characters of a name of a device, a case or an implementation."""
LINE: Final = 4000
"""The most characters of one line of a log."""
DOCUMENT_BYTES: Final = 4 * 1024 * 1024
"""The most bytes of a document: far more than any document of bench has."""
DEEPEST: Final = 20
"""The most levels of nesting of a document."""
SCHEMA: Final = 1

_HARMLESS = re.compile(r"[\x20-\x7e]*")
_UNSEEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories of characters that control a terminal, or reorder or hide text, instead of being shown."""


def words(text: str, limit: int = WORDS) -> str:
    """`text` on one line of at most `limit` characters. Line ends and tabs become spaces, control characters become
    visible text (`\\x1b`), and a text that is too long is cut and ends in `…`."""
    if len(text) <= limit and _HARMLESS.fullmatch(text):
        return text
    head = text[: limit + 1]
    shown = "".join(" " if c in "\n\r\t" else _visible(c) for c in head)
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def sentence(text: str) -> str:
    """`text` as `words`, with each run of white space replaced by one space."""
    return " ".join(words(text).split())


def name(text: str) -> str:
    return words(text, NAME)


def log_text(text: str) -> str:
    """The lines of a log, each as `words`, but with its tabs. A carriage return begins a new line: progress bars end
    their lines so."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return "\n".join("\t".join(words(part, LINE) for part in line.split("\t")) for line in text.split("\n"))


def plain(value: Any, depth: int = 0) -> Any:
    """A JSON value with every text in it, also keys, as `words`. Levels below `DEEPEST` are left out."""
    if isinstance(value, str):
        return words(value)
    if isinstance(value, dict):
        return {words(str(key)): plain(one, depth + 1) for key, one in value.items()} if depth < DEEPEST else {}
    if isinstance(value, list):
        return [plain(one, depth + 1) for one in value] if depth < DEEPEST else []
    return value


class Newer(ValueError):
    """A later version of this program wrote the document, so its keys may have other meanings."""


def of_schema(found: Mapping[str, Any], known: int = SCHEMA) -> None:
    """Checks the `schema` of a stored document. A document without one has schema 1; added keys do not change the
    number. Raises `Newer` if the number is larger than this version knows, `ValueError` if it is not a number."""
    number = found.get("schema", 1)
    if type(number) is not int or number < 1:
        raise ValueError("its schema is not a number")
    if number > known:
        raise Newer(f"a newer version of bench wrote it: its schema is {number}, and this version reads up to {known}")


def is_newer(data: bytes) -> bool:
    """Whether a later version of this program wrote the document."""
    try:
        found = json.loads(data)
        of_schema(found if isinstance(found, dict) else {})
    except Newer:
        return True
    except (ValueError, RecursionError):
        return False
    return False


def document(data: bytes) -> dict[str, Any]:
    """The JSON object in `data`, with its texts made harmless. Raises `Newer` if a later version wrote it, and
    `ValueError` for anything that is not a valid document."""
    found = unnumbered(data)
    of_schema(found)
    return found


def unnumbered(data: bytes) -> dict[str, Any]:
    """As `document`, but without checking the schema. Raises `ValueError`."""
    if len(data) > DOCUMENT_BYTES:
        raise ValueError(f"it has {len(data)} bytes, which is more than any document of bench has")
    try:
        found = json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("it is not a JSON object")
    return dict(plain(found))


def _visible(c: str) -> str:
    if unicodedata.category(c) not in _UNSEEN:
        return c
    return c.encode("unicode_escape").decode("ascii")

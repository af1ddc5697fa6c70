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
from collections.abc import Iterator, Mapping
from typing import IO, Any, Final

# Reads a text file that the user named. It must be UTF-8 and of limited size. A user may name a data set, a device or
# an endless pipe by mistake. Every such file is read here, so that one rule limits how much is read.


MOST_YAML: Final = 128 << 10
"""The most bytes of a configuration, a sweep or a description. The longest that comes with the tool has 7 KB."""
MOST_SOURCE: Final = 20 << 20
"""The most bytes of any other file, such as a source or a page."""


def read_text(file: IO[bytes], most: int = MOST_YAML) -> str:
    """The text of an open file, with `\\n` as line end and without a byte order mark. Raises `OSError`, and
    `ValueError` if the file has more than `most` bytes or is not UTF-8."""
    data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(too_long(most))
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError:
        raise ValueError("not UTF-8 text") from None


def too_long(most: int) -> str:
    return f"it has more than {most >> 20} MB" if most >= 1 << 20 else f"it has more than {most >> 10} KB"


def os_error_text(error: Exception) -> str:
    """The reason why a file cannot be read, from its error."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


# Folds a line at a terminal's width, so that no part of it begins a line of the screen. A terminal breaks a longer
# line where it ends, and whoever wrote a part of it could have what follows the break pass for a line of ours, such
# as a hint. Where a line goes on it is indented, as none that we begin is.


NARROWEST: Final = 20
"""A terminal with fewer columns gets lines for one of so many."""


def fold_lines(text: str, columns: int | None, indent: int) -> str:
    """`text` in lines of at most `columns` cells; those that go on begin with `indent` spaces. As it is where there is
    no limit. Line ends that it has stay."""
    if columns is None:
        return text
    columns = max(columns, NARROWEST)
    room = columns - min(indent, columns // 2)
    gap = " " * (columns - room)
    return "\n".join(f"\n{gap}".join(_lines(line, columns, room)) for line in text.split("\n"))


def fold_commands(text: str, columns: int | None, indent: int) -> str:
    """`text`, which begins after `indent` cells, in lines; a command `between backticks` stays on one line and can be
    copied. As it is where a word or a command has no room on a line, or where there is no limit."""
    words = re.findall(r"(?:`[^`]*`|\S)+", text)
    if columns is None or any(count_cells(word) > columns - indent for word in words):
        return text
    lines = [""]
    for word in words:
        longer = f"{lines[-1]} {word}".strip()
        lines = [*lines[:-1], longer] if count_cells(longer) <= columns - indent else [*lines, word]
    return ("\n" + " " * indent).join(lines)


def _lines(line: str, first: int, room: int) -> Iterator[str]:
    """Pieces of a line: the first of `first` cells at most, the others of `room`; broken at a space where there is one
    that does not make a piece much shorter."""
    remaining, width = line, first
    while count_cells(remaining) > width:
        cut = _fitting(remaining, width)
        space = remaining.rfind(" ", width // 2, cut + 1)
        end = space if space > 0 else cut
        yield remaining[:end]
        remaining, width = remaining[end:].lstrip(" "), room
    yield remaining


def _fitting(text: str, width: int) -> int:
    """How many characters fit into so many cells."""
    used = 0
    for place, character in enumerate(text):
        used += count_cells(character)
        if used > width:
            return max(place, 1)
    return len(text)


def count_cells(text: str) -> int:
    """The most cells that it takes: no terminal shows what is beyond ASCII in more than two."""
    return len(text) if text.isascii() else sum(1 if character.isascii() else 2 for character in text)


# Writes numbers and sentences for people, in messages, tables and pages.


def count(number: int, one: str, many: str = "") -> str:
    """A number with its noun: `1 run`, `2 runs`, `1,024 cases`. `many` is the plural if it is not `one` with an s."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def format_clock(seconds: float) -> str:
    """Seconds as a time, without the fraction: `0:42`, `12:05`, `2:03:04`."""
    minutes, seconds_part = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds_part:02d}" if hours else f"{minutes}:{seconds_part:02d}"


def parse_minutes(text: str) -> int:
    """The minutes of a time such as `3h`, `90m` or `1h30m`; a bare number is minutes. Raise `ValueError`."""
    match = re.fullmatch(r"(?=.)(?:(\d{1,3})h)?(?:(\d{1,5})m?)?", text.strip())
    if match is None:
        raise ValueError(f"'{clean_line(text, 40)}' is not a time: write 3h, 90m or 1h30m")
    return 60 * int(match[1] or 0) + int(match[2] or 0)


def capitalize_first(words: str) -> str:
    """`words` as the beginning of a sentence: the first letter becomes a capital, the others do not change."""
    return f"{words[:1].upper()}{words[1:]}"


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


def clean_line(text: str, limit: int = WORDS) -> str:
    """`text` on one line of at most `limit` characters. Line ends and tabs become spaces, control characters become
    visible text (`\\x1b`), and a text that is too long is cut and ends in `…`."""
    if len(text) <= limit and _HARMLESS.fullmatch(text):
        return text
    head = text[: limit + 1]
    shown = "".join(" " if c in "\n\r\t" else _visible(c) for c in head)
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def to_ascii(text: str, most: int) -> str:
    """The first `most` characters, those that are not printable ASCII as `?`. Some servers send metadata in headers."""
    return "".join(c if " " <= c <= "~" else "?" for c in text)[:most]


def clean_sentence(text: str) -> str:
    """`text` as `words`, with each run of white space replaced by one space."""
    return " ".join(clean_line(text).split())


def clean_name(text: str) -> str:
    return clean_line(text, NAME)


def log_text(text: str) -> str:
    """The lines of a log, each as `words`, but with its tabs. A carriage return begins a new line: progress bars end
    their lines so."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return "\n".join("\t".join(clean_line(part, LINE) for part in line.split("\t")) for line in text.split("\n"))


def clean_value(value: Any, depth: int = 0) -> Any:
    """A JSON value with every text in it, also keys, as `words`. Levels below `DEEPEST` are left out."""
    if isinstance(value, str):
        return clean_line(value)
    if isinstance(value, dict):
        return (
            {clean_line(str(key)): clean_value(one, depth + 1) for key, one in value.items()} if depth < DEEPEST else {}
        )
    if isinstance(value, list):
        return [clean_value(one, depth + 1) for one in value] if depth < DEEPEST else []
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
        document = json.loads(data)
        of_schema(document if isinstance(document, dict) else {})
    except Newer:
        return True
    except (ValueError, RecursionError):
        return False
    return False


def parse_document(data: bytes) -> dict[str, Any]:
    """The JSON object in `data`, with its texts made harmless. Raises `Newer` if a later version wrote it, and
    `ValueError` for anything that is not a valid document."""
    parsed = parse_unversioned(data)
    of_schema(parsed)
    return parsed


def parse_unversioned(data: bytes) -> dict[str, Any]:
    """As `document`, but without checking the schema. Raises `ValueError`."""
    if len(data) > DOCUMENT_BYTES:
        raise ValueError(f"it has {len(data)} bytes, which is more than any document of bench has")
    try:
        parsed = json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(parsed, dict):
        raise ValueError("it is not a JSON object")
    return dict(clean_value(parsed))


def _visible(c: str) -> str:
    if unicodedata.category(c) not in _UNSEEN:
        return c
    return c.encode("unicode_escape").decode("ascii")

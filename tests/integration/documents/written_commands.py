"""The command lines that the documents show: those of blocks, and those quoted in a sentence."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = ("bench", "make", "gcloud", "curl", "python", "python3", "pip", "pipx", "uv", "git", "man", "source")
LANGUAGES = ("", "sh", "bash", "console")


@dataclass(frozen=True, slots=True)
class Written:
    """One command line of a page, as it stands there."""

    page: str
    text: str
    block: bool

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(shlex.split(self.text, comments=True))


def pages() -> list[Path]:
    """Every Markdown page that a user may read commands from."""
    folders = (ROOT / "docs", ROOT / "kernels", ROOT / "configs", ROOT / "results")
    found = [path for folder in folders for path in folder.rglob("*.md")]
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(found)]


def commands_of(path: Path) -> Iterator[Written]:
    """Every command line of a page, blocks first."""
    name, text = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
    for language, body in re.findall(r"^ *```(\w*)\n(.*?)^ *```", text, re.M | re.S):
        if language in LANGUAGES:
            yield from (Written(name, line, True) for line in block_lines(body))
    outside = re.sub(r"^ *```.*?^ *```", "", text, flags=re.M | re.S)
    for quoted in re.findall(r"`([^`\n]+)`", outside):
        if quoted.split(" ")[0] in PROGRAMS and " " in quoted and not quoted.startswith("python "):
            yield from (Written(name, one, False) for one in meant(quoted))


def block_lines(body: str) -> Iterator[str]:
    """The commands of a block, without prompt and remark: all lines, or after a `$` those alone."""
    lines = re.sub(r"\\\n\s*", "", body).splitlines()
    session = any(line.startswith("$ ") for line in lines)
    for line in lines:
        if session and not line.startswith("$ "):
            continue
        command = re.split(r"\s{2,}|\s+# ", line.removeprefix("$ ").strip())[0]
        first = next((word for word in command.split(" ") if not re.match(r"[A-Z_]+=", word)), "")
        if first in PROGRAMS:
            yield command


def meant(quoted: str) -> list[str]:
    """What a form stands for: each of `a|b`, with what is in brackets, without what an ellipsis leaves open."""
    text = quoted.replace("\\|", "|")
    text = re.sub(r"\[(:?[^\]=]*)\]", r"\1", text)
    text = re.sub(r"(--[\w-]+) …", r"\1 1", text).replace("…", "").replace("...", "").strip()
    choices = [word.split("|") for word in text.split()]
    return [" ".join(words) for words in product(*choices)]


def said_by_the_program() -> Iterator[Written]:
    """Every `bench …` that a message, a hint or a help text of the program quotes; 1 stands for what it fills
    in. Where it fills in options, their own tests know them."""
    for path in sorted((ROOT / "orchestrator").rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if "_bundle" in path.parts or "`bench " not in source:
            continue
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.JoinedStr):
                text = "".join(str(part.value) if isinstance(part, ast.Constant) else "1" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value
            else:
                continue
            filled_in = re.findall(r"`(bench [^`\n]+)`", text)
            for quoted in (one for one in filled_in if not re.search(r"--1|budget set 1", one)):
                yield from (Written(path.relative_to(ROOT).as_posix(), one, False) for one in meant(quoted))

"""What users read counts as English does: one machine, two machines."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ALWAYS = re.compile(
    r" (?:more |other )?(machines|VMs|cases|zones|objects|children|images|days|rows|jobs|measurements|configurations|"
    r"implementations|repeats|regions|GPUs|kernels|attempts|tries|problems|devices|hosts|copies|entries|comparisons|pages|prices|baselines|steps|names) ?"
)
IF_COUNTED = re.compile(r" (runs|fleets|holds|files|lines|checks|commands|reports|changes) ?")
"""These are verbs too: after `len(…)` they are not."""


def uncounted(source: str) -> Iterator[tuple[int, str]]:
    """Line and words where an f-string puts a number before a noun that is always plural."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.JoinedStr):
            continue
        for value, after in zip(node.values, node.values[1:], strict=False):
            if not isinstance(value, ast.FormattedValue) or not isinstance(after, ast.Constant):
                continue
            told = ast.unparse(value.value)
            noun = ALWAYS.match(str(after.value)) or (IF_COUNTED.match(str(after.value)) if "len(" in told else None)
            if noun and not told.startswith("count(") and not told.isupper():
                yield node.lineno, f"{{{told}}} {noun[1]}"


def test_a_number_before_a_noun_is_counted() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {words}: say it with wording.count"
        for folder in ("orchestrator", "spotbench")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if "embedded" not in path.parts
        for line, words in uncounted(path.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_no_message_leaves_the_plural_to_its_reader() -> None:
    texts = ((path, path.read_text(encoding="utf-8")) for path in (ROOT / "orchestrator").rglob("*.py"))
    texts = ((path, text) for path, text in texts if "embedded" not in path.parts)  # those words are Google's
    assert [str(path) for path, text in texts if re.search(r"[a-z]\(s\)", text)] == []


def test_the_look_finds_what_it_is_for() -> None:
    assert list(uncounted('f"{n} machines are alive"')) == [(1, "{n} machines")]
    assert list(uncounted('f"{len(x)} runs"')) == [(1, "{len(x)} runs")]
    assert list(uncounted('f"{name} runs in {zone}"')) == []
    assert list(uncounted("f\"{count(n, 'machine')} machines\"")) == []

"""What the documents list is what the code has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from orchestrator.core.permissions import ACCOUNT, BUCKET, BUCKET_LOOKER, LAUNCHER, LOOKER, MACHINE, Need
from orchestrator.embedded.climate import CONDITIONS
from orchestrator.embedded.weather import EVERY_KEY, KEYS

ROOT = Path(__file__).resolve().parent.parent
TABLES = {
    "launcher": (*LAUNCHER, *LOOKER),
    "bucket": (*BUCKET, *BUCKET_LOOKER),
    "account": ACCOUNT,
    "machine": MACHINE,
}


def table(needs: tuple[Need, ...]) -> str:
    rows = "".join(f"| `{need.permission}` | {need.why} | `{need.code}` |\n" for need in needs)
    return f"| permission | to | used by |\n|---|---|---|\n{rows}"


@pytest.mark.parametrize("name", TABLES)
def test_every_permission_is_listed_with_the_code_that_needs_it(name: str) -> None:
    text = (ROOT / "docs" / "gce.md").read_text(encoding="utf-8")
    found = re.search(rf"<!-- begin: {name} -->\n(.*?)<!-- end: {name} -->", text, re.DOTALL)
    assert found is not None
    assert found[1] == table(TABLES[name])


@pytest.mark.parametrize(
    "need", [need for group in TABLES.values() for need in group], ids=lambda need: need.permission
)
def test_the_code_that_is_said_to_need_a_permission_is_there(need: Need) -> None:
    path, _, function = need.code.partition(" ")
    folder = ROOT if path.startswith("startup/") else ROOT / "orchestrator"
    source = (folder / path).read_text(encoding="utf-8")
    assert not function or re.search(rf"\b(def|class) _?{function}\b", source)


def test_every_fault_and_condition_of_the_weather_is_in_the_contract() -> None:
    text = (ROOT / "docs" / "contracts.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `(\w+)` \|", text, re.M))
    assert set(EVERY_KEY) <= listed
    assert set(KEYS) & set(CONDITIONS) == set()

"""What the documents list is what the code has."""

from __future__ import annotations

import ast
import csv
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from orchestrator.cli.app import COMMANDS
from orchestrator.core.fleet.sweep import Sweep
from orchestrator.core.permissions import Need
from orchestrator.core.run.events import FACTS
from orchestrator.core.setup.plan import APIS
from orchestrator.embedded.weather import CONDITIONS, EVERY_KEY, KEYS
from scripts.tables import NEEDS, differing

ROOT = Path(__file__).resolve().parents[2]


def test_the_tables_and_schemas_of_the_documents_are_those_of_the_code() -> None:
    assert differing() == [], "make tables writes them"


@pytest.mark.parametrize("need", [need for group in NEEDS.values() for need in group], ids=lambda need: need.permission)
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


def test_every_kind_of_event_has_its_name_in_the_contract() -> None:
    """The names follow the classes: one that is renamed would no longer read what older versions wrote."""
    text = (ROOT / "docs" / "contracts.md").read_text(encoding="utf-8")
    events = text.partition("\n## 5. Events\n")[2].partition("\n## ")[0]
    assert len(FACTS) > 30
    assert set(FACTS) <= set(re.findall(r"`(\w+)`", events))


CONTRIBUTING = sorted(path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs/contributing").glob("*.md"))
PLACES = [
    (page, path, symbol)
    for page in ("architecture.md", "words.md", *CONTRIBUTING)
    for path, symbol in re.findall(
        r"`((?:orchestrator|kernels|startup|tests|configs|scripts|docs)/[\w/.-]*)`(?:\s`(\w+)`)?",
        (ROOT / "docs" / page).read_text(encoding="utf-8"),
    )
    if "NAME" not in path
]


@pytest.mark.parametrize(("page", "path", "symbol"), sorted(set(PLACES)))
def test_every_place_that_the_architecture_and_the_words_name_is_there(page: str, path: str, symbol: str) -> None:
    there = ROOT / path
    assert there.exists()
    if symbol and there.suffix == ".py":
        nodes = list(ast.walk(ast.parse(there.read_text(encoding="utf-8"))))
        assert symbol in {getattr(node, "name", "") or getattr(node, "id", "") for node in nodes}


def test_every_command_is_explained_on_the_page_of_commands() -> None:
    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8").partition("## In detail")[2]
    assert [name for name in COMMANDS if not re.search(rf"`bench {name}\b", text)] == []


def test_the_readme_is_one_screen_and_a_half() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 120
    assert [line for line in lines if len(line) > 160] == []


def sentences(source: str) -> Iterator[str]:
    """Every text of a module that is not a docstring."""
    tree = ast.parse(source)
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    yield from (
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone
    )


def test_every_page_that_a_hint_names_can_be_shown_from_a_wheel() -> None:
    """A wheel has no folder docs/ beside it: a hint names `bench docs PAGE`, and the page is there."""
    paths = [path for top in ("orchestrator", "spotbench", "startup", "kernels") for path in (ROOT / top).rglob("*.py")]
    sources = [path.read_text(encoding="utf-8") for path in paths if "_bundle" not in path.parts]
    texts = [text for source in sources if "docs" in source for text in sentences(source)]
    assert [text for text in texts if re.search(r"docs/[\w/-]+\.md", text)] == []
    named = {name for text in texts for name in re.findall(r"`bench docs ([\w/-]+)`", text)}
    assert len(named) > 8
    assert [name for name in named if not (ROOT / "docs" / f"{name}.md").is_file()] == []
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"][
        "wheel"
    ]
    assert wheel["force-include"]["docs"] == "orchestrator/_bundle/docs"


def retired() -> list[str]:
    text = (ROOT / "docs" / "words.md").read_text(encoding="utf-8").partition("## Retired")[2]
    return re.findall(r"^\| `(\w+)` \|", text, re.M)


def test_no_retired_name_comes_back_in_code_or_documents() -> None:
    names = set(retired())
    assert len(names) >= 5
    for path in (p for folder in ("orchestrator", "kernels", "startup") for p in (ROOT / folder).rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(source)) if names & set(re.findall(r"\w+", source)) else ():
            name = getattr(node, "name", None) or getattr(node, "id", None)
            assert name not in names, f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}: {name} is retired"
    for path in (p for p in (ROOT / "docs").rglob("*.md") if p.name != "words.md"):
        quoted = set(re.findall(r"`(\w+)`", path.read_text(encoding="utf-8")))
        assert not quoted & names, f"{path.relative_to(ROOT)}: {quoted & names}"


# --- pages and the way between them ---------------------------------------------------------------------------------


def pages_of(nav: object) -> list[str]:
    """The pages that a list of contents leads to, in their order."""
    if isinstance(nav, str):
        return [nav]
    below = nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ()
    return [page for one in below for page in pages_of(one)]


def test_the_contents_of_the_site_of_documents_lead_to_every_page_and_to_no_other() -> None:
    docs, text = ROOT / "docs", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    there = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md") if path.parent.name != "decisions"}
    assert set(pages_of(yaml.safe_load(text)["nav"])) == there | {"decisions/README.md"}


def test_as_many_defects_are_planted_as_the_page_on_cost_says() -> None:
    planted = yaml.safe_load((ROOT / "scripts" / "mutants.yaml").read_text(encoding="utf-8"))
    assert f"| {len(planted)} defects are planted in the source" in (ROOT / "docs/cost-safety.md").read_text()


def written_anchor(heading: str) -> str:
    """The name by which GitHub and mkdocs lead to a heading."""
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.replace("`", "")).strip().lower()
    return re.sub(r"[^\w\- ]", "", words).replace(" ", "-")


def test_every_link_of_a_page_leads_to_a_file_that_is_there_and_to_a_heading_of_it() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    pages += [path for name in ("docs", "kernels", "configs", "results") for path in (ROOT / name).rglob("*.md")]
    lost = []
    for page in pages:
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
        for link in re.findall(r"\]\(([^)\s]+)\)", text):
            file, _, anchor = link.partition("#")
            there = page.parent / file if file else page
            if "://" in link or link.startswith("mailto:"):
                continue
            headings = re.findall(r"^#+ (.*)$", there.read_text(encoding="utf-8"), re.M) if anchor else []
            if not there.exists() or (anchor and anchor not in map(written_anchor, headings)):
                lost.append(f"{page.relative_to(ROOT)}: {link}")
    assert lost == []


def test_as_many_apis_are_enabled_as_the_page_on_google_cloud_says() -> None:
    numbers = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    said = re.findall(r"enables (\w+) APIs", (ROOT / "docs" / "gce.md").read_text(encoding="utf-8"))
    assert said == [numbers[len(APIS)]]


def test_every_sweep_on_the_fleets_page_is_valid_and_every_sweep_key_is_on_it() -> None:
    text = (ROOT / "docs" / "fleets.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```yaml\n(.*?)```", text, re.S)
    assert len(blocks) >= 2
    for block in blocks:
        Sweep.model_validate(yaml.safe_load(block))
    assert [key for key in Sweep.model_fields if not re.search(rf"^{key}:|`{key}:", text, re.M)] == []


# The tables of docs/timers.md are the published measurements.


def test_every_row_of_the_timers_page_is_a_published_measurement() -> None:
    with (ROOT / "results/timers.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["implementation"] == "bench"]
    timers = ("cupti", "harness graph", "harness burst", "triton do_bench", "triton do_bench_cudagraph")
    published = [[row[name] or "-" for name in (*timers, "torch.utils.benchmark", "nvbench")] for row in rows]
    page = (ROOT / "docs/timers.md").read_text(encoding="utf-8")
    cells = [line.strip("| ").split(" | ")[1:] for line in page.splitlines() if line.startswith("| B")]
    assert cells == published
    assert len(cells) == 14

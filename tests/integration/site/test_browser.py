"""The site as a person uses it: in a browser, by mouse and by keyboard, in a narrow window and a wide one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.adapters.site_server import SiteServer
from orchestrator.cli.site_build import build
from orchestrator.embedded.guard import is_own_connection
from orchestrator.report import comparing, html
from orchestrator.report.comparing import compare_reports
from tests.support.browser import WITH_CHROMIUM, Page
from tests.support.browser import chromium as chromium
from tests.support.browser import page as page
from tests.support.memory_bucket import MemoryBucket
from tests.unit.report.written import both, csv_text, reported
from tests.unit.site.written import many, names, source, store

CASE = "b2-h8-kv8-q128-k128-d64-full-float16"
AXE = Path(os.environ.get("AXE_HOME", Path.home() / ".cache/spotbench-tests")) / "node_modules/axe-core/axe.min.js"
WIDTHS = (390, 1280, 1920)

pytestmark = WITH_CHROMIUM


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site of twenty runs, one of them open, and beside it what `bench report` and `bench compare` write."""
    bucket, folder = MemoryBucket(), tmp_path_factory.mktemp("site")
    many(bucket, range(19), blocks=12)
    store(bucket, 19, open_=True, mode="embedded", user="<b>eve</b>")
    build(source(bucket), folder, processes=1)
    before, after = reported(csv_text(both())), reported(csv_text(both(noise=0.02)))
    (folder / "report.html").write_text(html.report_page(before))
    (folder / "compare.html").write_text(comparing.comparison_page([compare_reports(before, after)]))
    return folder


def kinds() -> list[str]:
    runs = [f"runs/{names(0)}.html", f"runs/{names(16, 't4')}.html", f"runs/{names(19)}.html"]
    return [
        "index.html", "cases/index.html", f"cases/{CASE}.html", "gpus.html", "costs.html", *runs, "report.html",
        "compare.html",
    ]  # fmt: skip


SHOWN = "[...document.querySelectorAll('tbody tr')].filter(row => !row.hidden)"
FIRST = f"{SHOWN}[0].cells[0].textContent"


def test_pages_open_from_disk_and_are_no_wider_than_their_window(page: Page, pages: Path) -> None:
    """No request, no complaint, at three widths, light and dark. Pictures stay in $SITE_PICTURES."""
    pictures = os.environ.get("SITE_PICTURES")
    for kind in kinds():
        for width in WIDTHS:
            page.look(width)
            page.open((pages / kind).as_uri())
            for dark in (False, True):
                page.look(width, dark=dark)
                assert page.run("document.documentElement.scrollWidth") <= width, (kind, width)
                assert page.run("getComputedStyle(document.body).backgroundColor") == (
                    "rgb(15, 19, 24)" if dark else "rgb(255, 255, 255)"
                )
                if pictures:
                    page.picture(Path(pictures) / f"{kind.replace('/', '-')}-{width}{'-dark' if dark else ''}.png")
    assert (page.requests, page.complaints) == ([], [])


@pytest.mark.skipif(not AXE.is_file(), reason="axe-core is not here: `make axe` fetches it")
def test_axe_finds_nothing_wrong_on_any_kind_of_page(page: Page, pages: Path) -> None:
    """What axe-core knows of contrast, names, roles, order and the keyboard. Each page is looked at light and dark,
    narrow and wide; dark is narrow on every other page, so that all four meet."""
    axe, found = AXE.read_text(), []
    for index, kind in enumerate(kinds()):
        for width in (390, 1280):
            dark = (width == 390) == bool(index % 2)
            page.look(width, dark=dark)
            page.open((pages / kind).as_uri())
            page.run("document.querySelectorAll('details').forEach(one => one.open = true)")
            page.run(f"{axe};1")
            wrong = page.run("axe.run().then(one => one.violations.map(v => [v.id, v.nodes.length, v.nodes[0].html]))")
            found += [(kind, width, dark, *one) for one in wrong]
    assert found == []


DOCS = Path(os.environ.get("DOCS_SITE", Path(__file__).parents[3] / "build/docs"))
"""Where `make docs` makes the site of the documents."""


@pytest.mark.skipif(not (AXE.is_file() and DOCS.is_dir()), reason="needs `make axe` and `make docs`")
def test_axe_finds_nothing_serious_on_the_site_of_documents(page: Page) -> None:
    """What is less than serious is the theme's: its menus have the same name twice."""
    axe, found = AXE.read_text(), []
    for index, path in enumerate(path for path in sorted(DOCS.rglob("*.html")) if path.stem != "404"):
        for width in (390, 1280):
            page.look(width, dark=(width == 390) == bool(index % 2))
            page.open(path.as_uri())
            assert page.run("document.documentElement.scrollWidth") <= width, (path.name, width)
            page.run(f"{axe};1")
            page.run("Promise.all(document.getAnimations().map(one => one.finished.catch(() => 0))).then(() => 1)")
            wrong = page.run("axe.run().then(one => one.violations.map(v => [v.impact, v.id, v.nodes[0].html]))")
            found += [(path.name, width, *one) for one in wrong if one[0] in ("serious", "critical")]
    assert found == []


PUSHED = (
    "[...document.querySelectorAll('{} > div')]"
    ".filter(one => one.checkVisibility() && one.scrollWidth > one.clientWidth).length"
)
CUT = (
    "[...document.querySelectorAll('{} svg')].filter(one => one.checkVisibility()).reduce((n, svg) => n + "
    "[...svg.querySelectorAll('text')].filter(one => {{const b = one.getBBox(); return !one.hasAttribute('transform') && "
    "(b.x < -1 || b.x + b.width > svg.viewBox.baseVal.width + 1)}}).length, 0)"
)


@pytest.mark.parametrize(
    "kind",
    [
        f"cases/{CASE}.html",
        "report.html#speed-up-by-case",
        "report.html#burst-cold",
        "report.html#correctness",
        "compare.html",
    ],
)
def test_a_figure_is_read_on_a_phone_without_being_pushed_sideways(page: Page, pages: Path, kind: str) -> None:
    page.look(390)
    file, _, section = kind.partition("#")
    page.open((pages / file).as_uri())
    within = f"#{section} figure" if section else "figure"
    assert page.run(f"document.querySelectorAll('{within}').length") > 0
    assert (page.run(PUSHED.format(within)), page.run(CUT.format(within))) == (0, 0)


def test_a_row_of_a_narrow_index_is_a_card_with_one_edge(page: Page, pages: Path) -> None:
    page.look(390)
    page.open((pages / "index.html").as_uri())
    edges = (
        "[...document.querySelectorAll('tbody tr')].map(row => [...new Set([...row.cells].filter(c => c.checkVisibility())"
        ".map(cell => Math.round(cell.getBoundingClientRect().right)))])"
    )
    found = page.run(edges)
    assert len(found) == 20
    assert {len(one) for one in found} == {1}


def test_words_and_choices_narrow_the_index_and_stand_in_the_address(page: Page, pages: Path) -> None:
    page.look(1280)
    page.open((pages / "index.html").as_uri())
    assert page.run("document.querySelector('.found').textContent") == "20 runs"
    page.click("input[type=search]")
    page.type("t4 GRACE")
    page.until("location.hash === '#q=t4+GRACE'")
    shown = page.run(f"{SHOWN}.map(row => row.textContent)")
    assert 0 < len(shown) < 20
    assert all("grace" in text and "t4" in text for text in shown)
    assert page.run("document.querySelector('.found').textContent") == f"{len(shown)} of 20 runs"
    page.run("(() => {const one = document.querySelector('select[name=state]'); one.value = 'failed';"
             "one.dispatchEvent(new Event('input', {bubbles: true}))})()")  # fmt: skip
    assert page.run(f"{SHOWN}.length") == page.run(
        f"{SHOWN}.filter(row => row.cells[5].textContent === 'failed').length"
    )
    page.click("button[type=reset]")
    page.until("location.hash === ''")
    assert page.run(f"{SHOWN}.length") == 20


def test_a_click_on_a_head_sorts_and_another_turns_it_around(page: Page, pages: Path) -> None:
    page.look(1280)
    page.open((pages / "index.html").as_uri())
    newest = page.run(FIRST)
    page.click("th:nth-child(10) button")
    dollars = "[...document.querySelectorAll('tbody tr')].map(row => +row.cells[9].dataset.key)"
    assert page.run(dollars) == sorted(page.run(dollars))
    assert page.run("document.querySelector('th:nth-child(10)').ariaSort") == "ascending"
    page.click("th:nth-child(10) button")
    assert page.run(dollars) == sorted(page.run(dollars), reverse=True)
    assert page.run("location.hash") == "#by=9d"
    assert page.run("document.querySelectorAll('th[aria-sort]').length") == 1
    page.click("button[type=reset]")
    assert page.run(FIRST) == newest


def test_a_link_shows_what_whoever_copied_it_saw(page: Page, pages: Path) -> None:
    page.look(1280)
    page.open((pages / "index.html").as_uri() + "#gpu=h100&by=0a&q=succeeded")
    assert page.run("document.querySelector('select[name=gpu]').value") == "h100"
    assert page.run("document.querySelector('input[type=search]').value") == "succeeded"
    shown = page.run(f"{SHOWN}.map(row => row.cells[0].textContent)")
    assert shown == sorted(shown)
    assert len(shown) > 2
    assert all("-h100-" in one for one in shown)


def test_one_walks_from_the_index_to_a_run_to_a_case_and_back_by_mouse(page: Page, pages: Path) -> None:
    page.look(1280)
    page.open((pages / "index.html").as_uri() + "#q=" + names(0))
    page.click("tbody tr:not([hidden]) a")
    page.until(f"location.pathname.endsWith('/runs/{names(0)}.html')")
    page.until("document.readyState === 'complete'")
    page.click("ul.links a")
    page.until("location.pathname.includes('/cases/b2-')")
    page.until("document.readyState === 'complete'")
    assert page.run("document.querySelectorAll('figure svg').length") >= 1
    page.click("nav.site li:nth-child(3) a")
    page.until("location.pathname.endsWith('/gpus.html')")
    page.until("document.readyState === 'complete'")
    assert page.run("document.querySelector('nav.site [aria-current]').textContent") == "GPUs"
    page.leave("history.go(-3)")
    page.until("location.pathname.endsWith('/index.html')")
    page.until(f"document.querySelector('.found') && {SHOWN}.length === 1")
    assert (page.requests, page.complaints) == ([], [])


def test_everything_is_reached_by_the_keyboard(page: Page, pages: Path) -> None:
    page.look(1280)
    page.open((pages / "index.html").as_uri())
    focus = "(e => e.tagName + ':' + (e.name || e.textContent.slice(0, 20)))(document.activeElement)"
    page.press("Tab", 9)
    assert page.run(focus) == "A:To the content"
    page.press("Enter", 13, "\r")
    page.until("location.hash === '#main'")
    page.press("/", 191, "/")
    assert page.run(focus) == "INPUT:q"
    assert page.run("document.activeElement.value") == ""
    seen = []
    for _ in range(24):
        page.press("Tab", 9)
        seen.append(page.run(focus))
    assert {"SELECT:gpu", "SELECT:state", "BUTTON:Show all", "BUTTON:run", "BUTTON:cost"} <= set(seen)
    assert any(one.startswith("A:2026") for one in seen), "the runs themselves"
    assert page.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_without_a_script_the_index_has_every_run(page: Page, pages: Path) -> None:
    page.look(1280)
    page.call("Emulation.setScriptExecutionDisabled", value=True)
    page.call("Page.navigate", url=(pages / "index.html").as_uri())
    page.until("document.querySelectorAll('tbody tr').length === 20 && document.readyState === 'complete'")
    assert page.run(f"{SHOWN}.length") == 20
    assert page.run("document.querySelector('form').hidden") is True


def test_a_served_page_is_loaded_again_when_its_run_goes_on(page: Page, tmp_path: Path) -> None:
    bucket = MemoryBucket()
    run = store(bucket, 0, open_=True, lengths=(128,))
    build(source(bucket), tmp_path / "site", processes=1)
    page.look(1280)
    with SiteServer(tmp_path / "site", is_own=is_own_connection) as server:
        page.open(f"{server.url}runs/{run}.html")
        assert "running" in page.run("document.querySelector('header').textContent")
        store(bucket, 0, lengths=(128,))
        build(source(bucket), tmp_path / "site", processes=1)
        page.until(
            "document.querySelector('header') && !document.querySelector('header').textContent.includes('running')"
        )
        assert all(url.startswith(server.url) for url in page.requests)
        assert page.complaints == []

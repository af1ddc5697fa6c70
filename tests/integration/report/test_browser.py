"""The pages as Chromium shows them: nothing is asked of anybody, nothing is complained of, and they can be looked at."""

from __future__ import annotations

import base64
import functools
import os
import re
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.api.results import read_report
from orchestrator.report import comparing, html
from orchestrator.report.comparing import compare_reports
from tests.support.browser import WITH_CHROMIUM, Page
from tests.support.browser import chromium as chromium
from tests.support.browser import page as page
from tests.unit.report.written import both, csv_text, records, reported

RESULTS = Path(__file__).resolve().parents[3] / "results"
LENGTHS = (128, 256, 1024)

pytestmark = WITH_CHROMIUM


@functools.cache
def report_page() -> str:
    return html.report_page(reported(csv_text(both(lengths=LENGTHS, peak_memory_bytes="4194304"))))


@functools.cache
def compare_page() -> str:
    before = reported(csv_text(both(lengths=LENGTHS)))
    speeds = {"bench": 1.42, "sdpa:default": 1.0, "sdpa:math": 0.5, "bench:aa": 1.42}
    after = reported(csv_text(records(lengths=LENGTHS, speeds=speeds, seed=3, cache="cold")))
    return comparing.comparison_page(
        [compare_reports(before, after), compare_reports(before, reported(csv_text(both(lengths=LENGTHS))))]
    )


@functools.cache
def large_page() -> str:
    """Twelve cases in three regimes, six implementations and two controls; the timer shows in most rows."""
    speeds = {"bench": 1.5, "sdpa:default": 1.2, "sdpa:flash": 1.0, "sdpa:efficient": 0.7, "sdpa:cudnn": 1.25,
              "sdpa:math": 0.08, "bench:aa": 1.5, "sdpa:default:aa": 1.2}  # fmt: skip
    rows = [
        row | {"dtype": dtype, "case_id": row["case_id"].replace("float16", dtype)}
        for regime in ("burst", "sustained", "graph") for dtype in ("float16", "bfloat16")
        for row in records(lengths=(128, 512, 1024, 2048, 4096, 16384), speeds=speeds, regime=regime, cache="cold",
                           blocks=12, timer_overhead_us="1.3", hidden="true", backend="fa90_bf16_d64_full_256x64s4p")
    ]  # fmt: skip
    return html.report_page(reported(csv_text(rows), repeat=True, cases_total=14))


def page_of_long_names() -> str:
    rows = [row | {"case_id": f"{row['case_id']}-{'x' * 50}{row['seq_q']}"} for row in records(lengths=(128, 1024))]
    return html.report_page(reported(csv_text(rows)))


PAGES = {"report": report_page, "compare": compare_page}


@pytest.mark.parametrize("kind", PAGES)
@pytest.mark.parametrize(
    ("name", "width", "dark"),
    [
        ("phone", 500, False),
        ("laptop", 1366, False),
        ("phone-dark", 500, True),
        ("laptop-dark", 1366, True),
        ("print", 794, False),
    ],
)
def test_it_opens_from_disk_without_a_complaint_or_a_request(
    page: Page, tmp_path: Path, kind: str, name: str, width: int, dark: bool
) -> None:
    """Pictures stay in $REPORT_PICTURES, or in the test's own folder."""
    picture = Path(os.environ.get("REPORT_PICTURES", tmp_path)) / f"{kind}-{name}.{'pdf' if name == 'print' else 'png'}"
    opened(page, PAGES[kind](), tmp_path, width, dark=dark)
    if name == "print":
        printed(page, picture)
    else:
        page.picture(picture)
    assert (page.complaints, page.requests) == ([], [])
    data = picture.read_bytes()
    if name == "print":
        assert data.startswith(b"%PDF")
    else:
        assert struct.unpack(">II", data[16:24])[0] == width
    assert len(data) > 20_000


@pytest.mark.parametrize("kind", PAGES)
@pytest.mark.parametrize("width", [390, 1280])
def test_a_page_is_no_wider_than_its_window(page: Page, tmp_path: Path, kind: str, width: int) -> None:
    """Wide tables and figures scroll in a frame of their own; the page itself never does."""
    opened(page, PAGES[kind](), tmp_path, width)
    assert page.run("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("width", [390, 1280])
def test_regimes_side_by_side_fit_without_scrolling(page: Page, tmp_path: Path, width: int) -> None:
    """Three regimes, six implementations, a warning in every row."""
    table = "document.querySelector('#every-kernel-and-case .wide')"
    opened(page, large_page(), tmp_path, width)
    assert page.run(f"{table}.scrollWidth - {table}.clientWidth") <= 0


@pytest.mark.parametrize("kind", PAGES)
def test_nothing_is_cut_off_on_paper(page: Page, tmp_path: Path, kind: str) -> None:
    """A4 with margins of 10 mm has 718 CSS pixels across, and nothing scrolls on it."""
    opened(page, PAGES[kind]().replace("@media print{", "@media all{"), tmp_path, 718)
    assert page.run("document.documentElement.scrollWidth") <= 718


def test_no_word_of_a_figure_is_cut_off(page: Page, tmp_path: Path) -> None:
    """Every text of every figure lies within it, as the browser sets it."""
    beyond = (
        "[...document.querySelectorAll('svg')].reduce((n, svg) => n + [...svg.querySelectorAll('text')].filter(t => "
        "{const b = t.getBBox(), v = svg.viewBox.baseVal; return t.checkVisibility() && !t.hasAttribute('transform') && "
        "(b.x < -1 || b.x + b.width > v.width + 1)}).length, 0)"
    )
    for text in (large_page(), page_of_long_names()):
        opened(page, text.replace("<details>", "<details open>"), tmp_path, 1280)
        assert page.run("document.querySelectorAll('svg text').length") > 0
        assert page.run(beyond) == 0


@functools.cache
def published_page() -> str:
    """84 cases, in three regimes: the largest run there is."""
    return html.report_page(read_report(RESULTS / "h200-20261124-forward"))


@pytest.mark.skipif(shutil.which("pdftotext") is None, reason="no poppler is installed")
@pytest.mark.parametrize("made", [large_page, published_page], ids=["12 cases", "84 cases"])
def test_a_run_in_three_regimes_is_at_most_twelve_pages_and_no_heading_is_alone(
    page: Page, tmp_path: Path, made: Callable[[], str]
) -> None:
    text = made()
    opened(page, text, tmp_path, 1280)
    printed(page, tmp_path / "report.pdf")
    done = subprocess.run(["pdftotext", "-layout", "report.pdf", "-"], cwd=tmp_path, capture_output=True, text=True)
    pages = [one for one in done.stdout.split("\f") if one.strip()]
    assert 3 <= len(pages) <= 12
    titles = set(re.findall(r"<h2>(.*?)</h2>", text))
    assert len(titles) > 6
    for one in pages:
        lines = [line.strip() for line in one.splitlines() if line.strip()]
        assert lines[-1] not in titles, one
        assert len(lines) > 4
    left_out = re.findall(r'<p class="soft paper">(.*?)</p>', text)
    assert left_out == [words for words in left_out if words in " ".join(done.stdout.split())]
    assert bool(left_out) == (made is published_page)


def test_a_page_that_does_ask_and_complain_would_be_found_out(page: Page, tmp_path: Path) -> None:
    opened(page, '<script>console.error("oh")</script><img src="http://127.0.0.1:9/x.png">', tmp_path, 500)
    assert "oh" in page.complaints
    assert page.requests == ["http://127.0.0.1:9/x.png"]


def opened(page: Page, text: str, folder: Path, width: int, *, dark: bool = False) -> None:
    """Shows a page from disk, in a window of this width, in CSS pixels."""
    file = folder / "page.html"
    file.write_text(text)
    page.look(width, dark=dark, height=3000)
    page.open(file.as_uri())


def printed(page: Page, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    page.call("Emulation.setEmulatedMedia", media="print", features=[])
    pdf = page.call("Page.printToPDF", printBackground=True, preferCSSPageSize=True)
    file.write_bytes(base64.b64decode(pdf["data"]))

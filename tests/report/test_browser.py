"""The pages as Chromium shows them: nothing is asked of anybody, nothing is complained of, and they can be looked at."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import subprocess
from html import escape
from pathlib import Path

import pytest

from orchestrator.cli.reading import read_report
from orchestrator.report import comparing, html
from orchestrator.report.comparison import compared
from tests.report.written import both, csv_text, records, reported

CHROMIUM = shutil.which("chromium")
QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-extensions", "--hide-scrollbars", "--enable-logging=stderr",
    "--proxy-server=127.0.0.1:9", "--proxy-bypass-list=<-loopback>",
)  # fmt: skip
RESULTS = Path(__file__).resolve().parents[2] / "results"
LENGTHS = (128, 256, 1024)
DARK = "--blink-settings=preferredColorScheme=0"

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed")]


def report_page() -> str:
    return html.page(reported(csv_text(both(lengths=LENGTHS, peak_memory_bytes="4194304"))))


def compare_page() -> str:
    before = reported(csv_text(both(lengths=LENGTHS)))
    speeds = {"bench": 1.42, "sdpa:default": 1.0, "sdpa:math": 0.5, "bench:aa": 1.42}
    after = reported(csv_text(records(lengths=LENGTHS, speeds=speeds, seed=3, cache="cold")))
    return comparing.page([compared(before, after), compared(before, reported(csv_text(both(lengths=LENGTHS))))])


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
    return html.page(reported(csv_text(rows), repeat=True, cases_total=14))


def page_of_long_names() -> str:
    rows = [row | {"case_id": f"{row['case_id']}-{'x' * 50}{row['seq_q']}"} for row in records(lengths=(128, 1024))]
    return html.page(reported(csv_text(rows)))


PAGES = {"report": report_page, "compare": compare_page}


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize(
    ("name", "width", "options"),
    [
        ("phone", 500, ()),
        ("laptop", 1366, ()),
        ("phone-dark", 500, (DARK,)),
        ("laptop-dark", 1366, (DARK,)),
        ("print", 794, ()),
    ],
)
def test_it_opens_from_disk_without_a_complaint_or_a_request(
    tmp_path: Path, page: str, name: str, width: int, options: tuple[str, ...]
) -> None:
    """Pictures stay in $REPORT_PICTURES, or in the test's own folder."""
    pictures = Path(os.environ.get("REPORT_PICTURES", tmp_path))
    pictures.mkdir(parents=True, exist_ok=True)
    picture = pictures / f"{page}-{name}.{'pdf' if name == 'print' else 'png'}"
    make = f"--print-to-pdf={picture}" if name == "print" else f"--screenshot={picture}"
    complaints, asked = opened(PAGES[page](), tmp_path, make, f"--window-size={width},3000", *options)
    assert (complaints, asked) == ([], set())
    data = picture.read_bytes()
    if name == "print":
        assert data.startswith(b"%PDF")
    else:
        assert struct.unpack(">II", data[16:24])[0] == width
    assert len(data) > 20_000


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("width", [390, 1280])
def test_a_page_is_no_wider_than_its_window(tmp_path: Path, page: str, width: int) -> None:
    """Wide tables and figures scroll in a frame of their own; the page itself never does."""
    assert measured(tmp_path, PAGES[page](), width, "document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("width", [390, 1280])
def test_regimes_side_by_side_fit_without_scrolling(tmp_path: Path, width: int) -> None:
    """Three regimes, six implementations, a warning in every row."""
    table = "document.querySelector('#side-by-side .wide')"
    assert measured(tmp_path, large_page(), width, f"{table}.scrollWidth - {table}.clientWidth") <= 0


@pytest.mark.parametrize("width", [390, 1280])
def test_what_is_published_fits_without_scrolling(tmp_path: Path, width: int) -> None:
    """Problems that have no axis in common, in three regimes."""
    table = "document.querySelector('#side-by-side .wide')"
    for folder in sorted(path.parent for path in RESULTS.glob("*/measurements.csv*")):
        page = html.page(read_report(folder))
        assert measured(tmp_path, page, width, f"{table}.scrollWidth - {table}.clientWidth") <= 0, folder.name


@pytest.mark.parametrize("page", PAGES)
def test_nothing_is_cut_off_on_paper(tmp_path: Path, page: str) -> None:
    """A4 with margins of 10 mm has 718 CSS pixels across, and nothing scrolls on it."""
    text = PAGES[page]().replace("@media print{", "@media all{")
    assert measured(tmp_path, text, 718, "document.documentElement.scrollWidth") <= 718


def test_no_word_of_a_figure_is_cut_off(tmp_path: Path) -> None:
    """Every text of every figure lies within it, as the browser sets it."""
    beyond = (
        "[...document.querySelectorAll('svg')].reduce((n, svg) => n + [...svg.querySelectorAll('text')].filter(t => "
        "{const b = t.getBBox(), v = svg.viewBox.baseVal; return t.checkVisibility() && !t.hasAttribute('transform') && "
        "(b.x < -1 || b.x + b.width > v.width + 1)}).length, 0)"
    )
    for text in (large_page(), page_of_long_names()):
        assert measured(tmp_path, text.replace("<details>", "<details open>"), 1280, beyond) == 0


@pytest.mark.skipif(shutil.which("pdftotext") is None, reason="no poppler is installed")
def test_twelve_cases_in_three_regimes_are_at_most_twelve_pages_and_no_heading_is_alone(tmp_path: Path) -> None:
    text = large_page()
    opened(text, tmp_path, f"--print-to-pdf={tmp_path / 'report.pdf'}", "--no-pdf-header-footer")
    done = subprocess.run(["pdftotext", "-layout", "report.pdf", "-"], cwd=tmp_path, capture_output=True, text=True)
    pages = [page for page in done.stdout.split("\f") if page.strip()]
    assert 3 <= len(pages) <= 12
    titles = set(re.findall(r"<h2>(.*?)</h2>", text))
    assert len(titles) > 6
    for page in pages:
        lines = [line.strip() for line in page.splitlines() if line.strip()]
        assert lines[-1] not in titles, page
        assert len(lines) > 4


def test_a_page_that_does_ask_and_complain_would_be_found_out(tmp_path: Path) -> None:
    text = '<script>console.error("oh")</script><img src="http://127.0.0.1:9/x.png">'
    complaints, asked = opened(text, tmp_path, f"--screenshot={tmp_path / 'x.png'}")
    assert len(complaints) == 1
    assert asked == {"http://127.0.0.1:9/x.png"}


def measured(folder: Path, text: str, width: int, script: str) -> int:
    """A number of a page, in CSS pixels, in a window of this width; browsers have no window as narrow as a phone, so
    the page is in a frame. Its policy, which lets nobody ask, is left out."""
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
    whole = f"<iframe id=f width={width} height=3000 style='border:0' srcdoc='{escape(text)}'></iframe>"
    ask = f"document.title = document.getElementById('f').contentWindow.eval({json.dumps(script)})"
    file = folder / "page.html"
    file.write_text(f"<body style='margin:0'>{whole}<script>onload = () => {{{ask}}}</script></body>")
    assert CHROMIUM is not None
    command = [CHROMIUM, *QUIET, "--window-size=1600,3000", f"--user-data-dir={folder / 'profile'}", "--dump-dom"]
    done = subprocess.run([*command, file.as_uri()], capture_output=True, text=True, timeout=600)
    found = re.search(r"<title>(-?\d+)</title>", done.stdout)
    assert found, done.stderr
    return int(found[1])


def opened(text: str, folder: Path, *options: str) -> tuple[list[str], set[str]]:
    """What the console said of a page, and what the page, not the browser of itself, asked the network for."""
    file, log = folder / "page.html", folder / "net.json"
    file.write_text(text)
    assert CHROMIUM is not None
    command = [CHROMIUM, *QUIET, *options, f"--user-data-dir={folder / 'profile'}", f"--log-net-log={log}"]
    done = subprocess.run([*command, file.as_uri()], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    begun = [
        line for line in log.read_text().splitlines() if '"initiator":"file:' in line or '"initiator":"null' in line
    ]
    asked = {found for line in begun for found in re.findall(r'"url":"((?!file:|data:)[^"]*)"', line)}
    return [line for line in done.stderr.splitlines() if "CONSOLE" in line], asked

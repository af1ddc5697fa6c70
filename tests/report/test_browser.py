"""The pages as Chromium shows them: nothing is asked of anybody, nothing is complained of, and they can be looked at."""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from orchestrator.report import comparing, html
from orchestrator.report.comparison import compared
from tests.report.written import both, csv_text, records, reported

CHROMIUM = shutil.which("chromium")
QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-extensions", "--hide-scrollbars", "--enable-logging=stderr",
    "--proxy-server=127.0.0.1:9", "--proxy-bypass-list=<-loopback>",
)  # fmt: skip
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
@pytest.mark.parametrize("width", [500, 1366])
def test_a_page_is_no_wider_than_its_window(tmp_path: Path, page: str, width: int) -> None:
    """Wide tables and figures scroll in a frame of their own; the page itself never does."""
    assert across(tmp_path, PAGES[page](), width) <= width


@pytest.mark.parametrize("page", PAGES)
def test_nothing_is_cut_off_on_paper(tmp_path: Path, page: str) -> None:
    """A4 with margins of 10 mm has 718 CSS pixels across, and nothing scrolls on it."""
    assert across(tmp_path, PAGES[page]().replace("@media print{", "@media all{"), 718) <= 718


def test_a_page_that_does_ask_and_complain_would_be_found_out(tmp_path: Path) -> None:
    text = '<script>console.error("oh")</script><img src="http://127.0.0.1:9/x.png">'
    complaints, asked = opened(text, tmp_path, f"--screenshot={tmp_path / 'x.png'}")
    assert len(complaints) == 1
    assert asked == {"http://127.0.0.1:9/x.png"}


def across(folder: Path, text: str, width: int) -> int:
    """How wide a page is, in CSS pixels, in a window of this width."""
    measure = "<script>document.title = document.documentElement.scrollWidth</script></body>"
    file = folder / "page.html"
    file.write_text(text.replace("</body>", measure))
    assert CHROMIUM is not None
    command = [CHROMIUM, *QUIET, f"--window-size={width},3000", f"--user-data-dir={folder / 'profile'}", "--dump-dom"]
    done = subprocess.run([*command, file.as_uri()], capture_output=True, text=True, timeout=90)
    found = re.search(r"<title>(\d+)</title>", done.stdout)
    assert found, done.stderr
    return int(found[1])


def opened(text: str, folder: Path, *options: str) -> tuple[list[str], set[str]]:
    """What the console said of a page, and what the page, not the browser of itself, asked the network for."""
    file, log = folder / "page.html", folder / "net.json"
    file.write_text(text)
    assert CHROMIUM is not None
    command = [CHROMIUM, *QUIET, *options, f"--user-data-dir={folder / 'profile'}", f"--log-net-log={log}"]
    done = subprocess.run([*command, file.as_uri()], capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    begun = [
        line for line in log.read_text().splitlines() if '"initiator":"file:' in line or '"initiator":"null' in line
    ]
    asked = {found for line in begun for found in re.findall(r'"url":"((?!file:|data:)[^"]*)"', line)}
    return [line for line in done.stderr.splitlines() if "CONSOLE" in line], asked

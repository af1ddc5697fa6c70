"""Runs that several tests of reports use."""

from __future__ import annotations

from html.parser import HTMLParser

from tests.unit.report.written import both, csv_text, records, skip

FULL = csv_text(records(lengths=(128, 256, 512, 1024, 2048, 4096)))
BROKEN = {
    "empty": csv_text([]),
    "one implementation": csv_text(records(speeds={"bench": 1.0})),
    "one measurement": csv_text(records(speeds={"bench": 1.0, "sdpa:default": 1.0}, blocks=1, lengths=(128,))),
    "all skipped": csv_text([skip("bench", "no <compiler>"), skip("sdpa:cudnn", "a | b")]),
    "not a number": csv_text(records(lengths=(128,), latency_us="nan")),
    "no sensors, no axes": csv_text(records(power_w="", sm_clock_mhz="", started_at="", seq_q="", temperature_c="")),
    "errors of zero": csv_text(records(max_abs_error="0")),
    "infinite error": csv_text(records(max_abs_error="inf")),
    "hostile": csv_text(records(device='<script>alert("1")</script>', lengths=(128,))),
    "constant": csv_text(records(noise=0.0)),
    "two regimes, one without a comparison": csv_text(
        row for row in both() if row["regime"] == "burst" or row["implementation"] == "bench"
    ),
    "a regime of which nothing is known": csv_text(records(regime="", cache="odd <b>")),
    "repeated": csv_text([*records(lengths=(128,)), *records(lengths=(128,))]),
    "torn": csv_text(both())[:-40],
    "two runs": csv_text([*records(lengths=(128,)), *records(lengths=(256,), run_id="20261121-040506-l4-0000")]),
}


class Balance(HTMLParser):
    """Counts elements that are opened and not closed, and notes everything that would be fetched or run."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.reaches: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "link", "line", "rect", "path", "circle"):
            self.open.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "srcset", "action", "data") and not (value or "").startswith(("data:,", "#")):
                self.reaches.append(f"{tag} {name}={value}")
            if name.startswith("on"):
                self.reaches.append(f"{tag} {name}")
        if tag in ("script", "iframe", "object", "img"):
            self.reaches.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("path", "circle"):
            assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)


def judged(text: str) -> Balance:
    balance = Balance()
    balance.feed(text)
    balance.close()
    assert balance.open == []
    return balance

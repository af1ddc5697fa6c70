"""The figures of a report: scales, axes, colours, marks and panels."""

from __future__ import annotations

import csv
import io
import itertools
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.analysis.bootstrap import Interval
from orchestrator.core.bundled import AXES
from orchestrator.core.results import MEASURED, ORIGIN
from orchestrator.report.boards import by_size, draw_boards, figure_svg
from orchestrator.report.document import summary_csv
from orchestrator.report.figures import SLIM, speedup_board, stack_rows
from orchestrator.report.html import report_page
from orchestrator.report.style import DARK, LIGHT, assign_looks
from orchestrator.report.svg import Scale, linear_ticks, log_ticks
from orchestrator.report.text import case_labels, format_limits, format_ratio, format_tick
from tests.unit.report.reported import FULL
from tests.unit.report.written import csv_text, records, reported


def test_every_coordinate_of_every_figure_is_a_number_within_it() -> None:
    for name, board in draw_boards(reported(FULL).study).items():
        svg = figure_svg(board)
        assert "nan" not in svg
        assert "inf" not in svg
        assert "var(" not in svg
        root = ElementTree.fromstring(svg)
        assert board.height > 50, name
        for element in root.iter():
            for axis, end in (("x", board.width), ("cx", board.width), ("y", board.height), ("cy", board.height)):
                if axis in element.attrib:
                    assert -1 <= float(element.attrib[axis]) <= end + 1, (name, element.attrib)


@given(st.lists(st.floats(1e-6, 1e6), min_size=1), st.booleans())
def test_a_scale_puts_many_values_where_it_puts_each(values: list[float], log: bool) -> None:
    scale = Scale(0.5, 200.0, 10.0, 800.0, log=log)
    assert scale.each(np.array(values)) == pytest.approx([scale(value) for value in values])


@given(st.floats(1e-9, 1e9), st.floats(1.001, 1e6), st.integers(3, 10))
def test_ticks_lie_within_their_axis_rise_and_are_few(low: float, factor: float, most: int) -> None:
    for ticks in (log_ticks(low, low * factor, most), linear_ticks(low, low * factor, most)):
        assert ticks == sorted(set(ticks))
        assert len(ticks) <= max(most, 5)
        assert all(low * 0.998 <= value <= low * factor * 1.002 for value in ticks)


@given(st.floats(1e-6, 1e6), st.booleans())
def test_a_scale_never_leaves_its_ends(value: float, log: bool) -> None:
    scale = Scale(0.5, 100, 10, 20, log=log)
    assert 10 <= scale(value) <= 20
    assert scale(0.5) == 10
    assert scale(100) == pytest.approx(20)


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_every_colour_stands_out_from_its_paper(colours: dict[str, str]) -> None:
    for name in ("ink", "soft", *(f"c{number}" for number in range(8)), "good", "bad"):
        light, dark = sorted((luminance(colours[name]), luminance(colours["paper"])), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, name


def test_no_two_implementations_share_a_shape_or_a_colour() -> None:
    """As many as are published beside each other, and one more."""
    known = ("bench", "sdpa:default", "sdpa:flash", "sdpa:efficient", "sdpa:cudnn", "sdpa:math")
    found = assign_looks((*known, "fa4", "mine"))
    assert len({look.colour for look in found.values()}) == len({look.shape for look in found.values()}) == 8
    assert {look.colour for look in found.values()} <= {f"c{number}" for number in range(8)}
    assert assign_looks(known) == {name: found[name] for name in known}
    assert assign_looks(("bench", "mine"))["mine"] != assign_looks(("bench", "mine"))["bench"]
    more = assign_looks((*known, *(f"other{number}" for number in range(20))))
    assert list(more.values()).count(more["bench"]) == 1


def test_ticks_have_no_digits_to_spare() -> None:
    assert [format_tick(value) for value in (1.0, 0.05, 2500, 1e-7)] == ["1", "0.05", "2,500", "1e-07"]


def test_the_speed_up_axis_shows_one_to_three_and_math_only_where_asked_for() -> None:
    speeds = {"bench": 1.5, "sdpa:default": 1.45, "sdpa:flash": 0.5, "sdpa:math": 0.06, "bench:aa": 1.5}
    study_ = reported(csv_text(records(speeds=speeds))).study
    svg = figure_svg(draw_boards(study_)["speedup"])
    ticks = set(re.findall(r'class="middle soft">([^<]+)<', svg))
    assert {"1", "1.5", "2", "3"} <= ticks
    assert "over math" not in svg
    assert "over math" in figure_svg(draw_boards(study_, everything=True)["speedup"])
    assert "over math" in report_page(reported(csv_text(records(speeds=speeds))))


@given(st.floats(0.05, 1.0), st.floats(1.0, 50.0), st.floats(120, 800))
def test_the_numbers_of_an_axis_of_ratios_do_not_run_into_each_other(low: float, high: float, width: float) -> None:
    scale = Scale(low * 0.98, high * 1.02, 0, width, log=True)
    ticks = scale.ratios()
    assert ticks == sorted(ticks)
    assert all(0 <= scale(one) <= width for one in ticks)
    if len(ticks) > 2 and high > 1.2:
        room = [7.2 * (len(format_tick(one)) - format_tick(one).count(".") / 2) / 2 for one in ticks]
        ends = [(scale(one) - half, scale(one) + half) for one, half in zip(ticks, room, strict=True)]
        assert all(right[0] - left[1] >= 5 for left, right in itertools.pairwise(ends))


def test_three_regimes_beside_each_other_leave_room_for_one_and_a_half() -> None:
    """As in what is published: a panel of 170 points, ratios to 7."""
    assert {1.0, 1.5, 2.0, 3.0, 5.0} <= set(Scale(0.95, 7.5, 0, 170, log=True).ratios())


def test_the_rate_by_size_has_a_panel_for_what_else_varies_and_needs_no_attention() -> None:
    rows = [row | {"dtype": dtype, "case_id": f"{row['case_id']}{dtype}"} for dtype in ("float16", "bfloat16")
            for row in records()]  # fmt: skip
    board, caption = by_size(reported(csv_text(rows)).study)
    assert board is not None
    svg = board.svg()
    assert caption.startswith("TFLOP/s by seq q.")
    assert (svg.count(">float16<"), svg.count(">bfloat16<")) == (1, 1)
    own = [
        {key: value for key, value in row.items() if key not in AXES}
        | {"rows": row["seq_q"], "case_id": f"n{row['seq_q']}"}
        for row in records()
    ]
    columns = [*ORIGIN, "rows", *MEASURED]
    report = reported(csv_text(own, columns))
    board, caption = by_size(report.study)
    assert board is not None
    assert caption.startswith("µs a call by rows.")
    assert report.title == "Kernels on NVIDIA L4"
    assert "Attention" not in report_page(report)
    assert "seq_q" not in report_page(report).partition("How this was measured")[0]


def test_gradients_have_panels_names_and_operations_of_their_own() -> None:
    rows = [
        {**row, "case_id": row["case_id"] + suffix}
        for suffix in ("", "-backward", "-both")
        for row in records(lengths=(128, 1024))
    ]
    report = reported(csv_text(rows))
    names = case_labels([case.case_id for case in report.study.cases])
    assert len(set(names.values())) == 6
    board, below = by_size(report.study)
    assert board is not None
    assert {"backward", "both"} <= set(re.findall(r">(\w+)</text>", board.svg()))
    assert "10 in place of 4" in below
    assert "10 in place of 4" not in by_size(reported(FULL).study)[1]
    told = {row["case_id"]: row["pass"] for row in csv.DictReader(io.StringIO(summary_csv(report)))}
    assert {case: case.rpartition("-")[2] if value else "" for case, value in told.items()} == told
    assert "pass" not in summary_csv(reported(FULL)).splitlines()[0].split(",")


@given(st.integers(1, 60), st.floats(12, 120))
def test_no_scale_of_a_figure_stands_above_a_single_row(rows: int, height: float) -> None:
    tops = [top for top, _ in stack_rows(0.0, rows, height)]
    bands, row = [1], tops[0]
    for top in tops[1:]:
        bands = [*bands[:-1], bands[-1] + 1] if top == pytest.approx(row + height) else [*bands, 1]
        row = top
    assert sum(bands) == rows
    assert len(bands) == 1 or min(bands) > 1


def test_on_a_phone_a_setting_has_rows_for_its_own_cases_alone() -> None:
    rows = [
        row
        for cache, lengths in (("cold", (128, 256, 512)), ("mixed", (1024,)))
        for row in records(lengths=lengths, cache=cache)
    ]
    board = speedup_board(reported(csv_text(rows)).study, width=SLIM)
    assert board is not None
    texts = [element.text for element in ElementTree.fromstring(board.svg()).iter() if element.text]
    assert {"burst, cold", "burst, mixed"} < set(texts)
    assert all(texts.count(f"S {length}") == 1 for length in (256, 512)), texts


@pytest.mark.parametrize(("value", "text"), [(1.294, "1.29×"), (0.1, "0.10×"), (0.000354, "0.00035×"), (250.4, "250×")])
def test_a_ratio_always_has_a_digit_that_is_not_zero(value: float, text: str) -> None:
    assert format_ratio(value) == text
    assert format_limits(Interval(value, value, value * 2)).startswith(f"[{text.rstrip('×')}") or value > 100

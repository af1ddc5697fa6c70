"""The line of a version in a session: what a machine says is checked, and chance is not called a difference."""

from __future__ import annotations

import io
import json
import math
import random
import unicodedata
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from rich.console import Console

from orchestrator.analysis.bootstrap import Interval
from orchestrator.api.sessions import LOST, VersionLine, correct_verdicts, rank_versions, read_line
from orchestrator.cli.documents import LeaderboardDocument, VersionDocument
from orchestrator.cli.sessions import VersionsView, board_lines, line_text, saves, versions_table
from orchestrator.cli.terminal import to_plain
from orchestrator.core.candidates import Candidate, CandidateVerdict, parse_verdict, time_refusal
from orchestrator.core.errors import ConfigError
from orchestrator.core.results import ResultsUnreadable
from tests.support.hostile_events import NUMBERS, OTHERS, TEXTS

NOW = datetime(2026, 11, 21, 4, 0, tzinfo=UTC)
COLUMNS = "run_id,case_id,device,implementation,backend,regime,block,repeat,latency_us,role,definition,skipped,fault"


def rows(case: str, chance: random.Random, *, factor: float = 1.0, blocks: int = 30, skipped: str = "") -> bytes:
    """Rows of a baseline of 100 µs and of a kernel that takes `factor` as long, with 3 % of noise and a slow drift."""
    lines = [COLUMNS]
    for block in range(1, blocks + 1):
        drift = 1 + 0.05 * math.sin(block / 9)
        for name, us, role, place in (("torch", 100.0, "baseline", 1), ("mine", 100.0 * factor, "kernel", 2)):
            if name == "mine" and skipped:
                continue
            latency = us * drift * math.exp(chance.gauss(0, 0.03))
            lines.append(f"r,{case},cpu,{name},{role}_{name},burst,{block},{block},{latency},{role},{place},,")
    if skipped:
        lines.append(f"r,{case},cpu,mine,,burst,,,,kernel,2,{skipped},wrong")
    return "\n".join([*lines, ""]).encode()


def verdict(count: int = 4, **changes: object) -> CandidateVerdict:
    made = {"number": 1, "kernels": ["mine"], "baselines": ["torch"], "seconds": 3.0}
    listed = [{"case_id": f"c{n}", "file": f"case-{n}.csv"} for n in range(1, count + 1)]
    return CandidateVerdict.model_validate({**made, "cases": listed, **changes})


def line(seed: int, factor: float, cases: int = 4) -> VersionLine:
    chance = random.Random(seed)
    return read_line(seed, verdict(cases), [(f"c{n}", rows(f"c{n}", chance, factor=factor)) for n in range(cases)])


@pytest.mark.parametrize(("factor", "words"), [(0.8, "faster"), (1.3, "slower")])
def test_a_version_that_is_faster_or_slower_is_called_so(factor: float, words: str) -> None:
    one = line(1, factor)
    assert (one.verdict, one.kernel, one.baseline) == (words, "mine", "torch")
    assert one.ratio is not None
    assert one.ratio.low < 1 / factor < one.ratio.high
    assert one.time_us == pytest.approx(100 * factor, rel=0.05)


def test_identical_candidates_are_not_called_different() -> None:
    lines = [line(seed, 1.0, cases=2) for seed in range(1, 101)]
    assert sum(one.verdict in ("faster", "slower") for one in lines) <= 1
    assert not [one for one in correct_verdicts(lines) if one.verdict in ("faster", "slower")]


def test_the_correction_over_versions_keeps_what_is_sure_and_drops_chance() -> None:
    sure = VersionLine(1, "faster", "mine", "torch", 1.0, Interval(1.4, 1.5, 1.6))
    lucky = VersionLine(2, "faster", "mine", "torch", 1.0, Interval(1.001, 1.03, 1.06))
    others = [VersionLine(n, "inconclusive", "mine", "torch", 1.0, Interval(0.95, 1.0, 1.05)) for n in range(3, 30)]
    assert [one.verdict for one in correct_verdicts([sure, lucky, *others])][:3] == [
        "faster",
        "inconclusive",
        "inconclusive",
    ]


def test_a_wrong_kernel_is_a_line_with_its_reason() -> None:
    case = {"case_id": "c1", "file": "case-1.csv", "skipped": {"mine": "max abs error 3, at most 0.1"}}
    one = read_line(1, verdict(cases=[case]), [("c1", rows("c1", random.Random(1), skipped="max abs error 3"))])
    assert (one.verdict, one.reason, one.time_us) == ("wrong", "max abs error 3, at most 0.1", None)
    assert line_text(one, best=True) == "v1  wrong  max abs error 3, at most 0.1  (3.0 s)"


@pytest.mark.parametrize(
    ("reason", "kind"), [("untrusted: it changed its inputs", "wrong"), ("m.py:3: syntax error", "unreadable")]
)
def test_a_candidate_that_could_not_be_judged_says_why(reason: str, kind: str) -> None:
    assert (one := read_line(2, verdict(reason=reason), [])).reason == reason
    assert one.verdict == kind


@pytest.mark.parametrize(
    "change",
    [
        {"number": 2},
        {"cases": [{"case_id": "c", "file": "../../secret"}]},
        {"cases": [{"case_id": "c", "file": "case-1.csv", "skipped": {"mine": "x" * 5000}}]},
        {"seconds": -1},
        {"reason": "x" * 5000},
        {"kernels": "mine"},
    ],
)
def test_a_verdict_that_no_machine_of_ours_writes_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ResultsUnreadable):
        parse_verdict(json.dumps({"number": 1, **change}).encode(), 1)


@pytest.mark.parametrize(("left_s", "fits"), [(300, True), (100, False), (-5, False)])
def test_there_is_time_for_a_candidate_only_if_the_slowest_so_far_fits(left_s: float, fits: bool) -> None:
    assert bool(time_refusal(NOW + timedelta(seconds=left_s), NOW, [4.0, 60.0])) is not fits


def test_a_candidate_that_is_too_large_is_refused_before_it_is_stored() -> None:
    with pytest.raises(ConfigError, match="a candidate may have 1024 KiB"):
        Candidate("mine", "own/mine.py", {"own/mine.py": bytes(1 << 21)}).document(1)


def test_each_save_is_one_version_and_waiting_looks_after_the_session(tmp_path: Path) -> None:
    file, moments, idle = tmp_path / "mine.py", [], []
    file.write_text("1")
    edits = iter(["22", None, "333"])

    def sleep(seconds: float) -> None:
        moments.append(seconds)
        if len(moments) % 20 == 0 and (text := next(edits)) is not None:
            file.write_text(text)

    seen = saves(file, sleep, lambda: idle.append(len(moments)))
    texts = [file.read_text() for _, _ in zip(range(3), seen, strict=False)]
    assert texts == ["1", "22", "333"]
    assert idle == [17, 37, 54]


def test_the_best_version_is_marked_and_a_lost_one_is_not(tmp_path: Path) -> None:
    assert line_text(line(1, 0.8), best=True).endswith("faster  best  (3.0 s)")
    assert "best" not in line_text(VersionLine(3, LOST, reason="the session failed"), best=True)


@pytest.mark.parametrize("far", ["1e300", "1e-300", "5e-324", "1e13", "1e-7"])
def test_no_latency_that_nothing_can_have_taken_is_counted(far: str) -> None:
    """Such rows came from a machine; of the others no ratio leaves the range of a float."""
    text = rows("c1", random.Random(1)).decode().splitlines()
    cells = text[3].split(",")
    cells[8] = far
    hostile = "\n".join([*text[:3], ",".join(cells), *text[4:], ""]).encode()
    usual, other = (read_line(1, verdict(1), [("c1", data)]) for data in (rows("c1", random.Random(1)), hostile))
    assert usual.ratio is not None
    assert other.ratio is not None
    assert other.ratio.mid == pytest.approx(usual.ratio.mid, rel=0.05)


@pytest.mark.parametrize("changes", [
    {"kernels": ["mine"] * 100_000}, {"cases": [{"case_id": "c", "file": "case-1.csv"}] * 2_000},
    {"cases": [{"case_id": "../x", "file": "case-1.csv"}]}, {"cases": [{"case_id": "c", "file": "../case-1.csv"}]},
], ids=["kernels", "cases", "case id", "file"])  # fmt: skip
def test_a_verdict_is_bounded_in_all_that_it_names(changes: dict[str, object]) -> None:
    made = {"number": 1, "kernels": ["mine"], "cases": [{"case_id": "c", "file": "case-1.csv"}]}
    assert parse_verdict(json.dumps(made).encode(), 1).kernels == ("mine",)
    with pytest.raises(ResultsUnreadable, match="cannot be read"):
        parse_verdict(json.dumps(made | changes).encode(), 1)


def standing_line(number: int, ratio: float, spread: float = 0.01, **changes: str) -> VersionLine:
    interval = Interval(ratio * (1 - spread), ratio, ratio * (1 + spread))
    return VersionLine(number, "faster", "mine", "torch", 100 / ratio, interval, usd=Decimal("0.01"), **changes)


def test_a_leaderboard_ranks_only_what_is_certain_and_counts_improvements() -> None:
    lines = [
        standing_line(1, 1.2), standing_line(2, 1.5), standing_line(3, 1.5), standing_line(4, 1.1),
        standing_line(5, 1.9),
    ]  # fmt: skip
    board = rank_versions([*lines, standing_line(6, 9.0, reason="max abs error 3")], Decimal("0.30"))
    places = {one.line.version: (one.first, one.last, one.improves) for one in board.standings}
    assert places == {
        5: (1, 1, True), 2: (2, 3, True), 3: (2, 3, False), 1: (4, 4, False), 4: (5, 5, False),
    }  # fmt: skip
    assert board.usd_per_improvement == Decimal("0.15")
    assert next(one.line.version for one in board.standings) == 5


def test_equal_versions_share_every_rank_in_at_least_95_of_100_sessions() -> None:
    chance, apart, improved = random.Random(5), 0, 0
    for _ in range(100):
        lines = [standing_line(n, math.exp(chance.gauss(0, 0.005))) for n in range(1, 11)]
        board = rank_versions(lines, Decimal(1))
        apart += {(one.first, one.last) for one in board.standings} != {(1, 10)}
        improved += board.improvements
    assert apart <= 5
    assert improved <= apart


def test_a_wrong_kernel_beside_a_right_one_is_named_on_the_line() -> None:
    chance, case = random.Random(1), {"case_id": "c1", "file": "case-1.csv", "skipped": {"other": "max abs error 3"}}
    one = read_line(1, verdict(kernels=["other", "mine"], cases=[case]), [("c1", rows("c1", chance, factor=0.8))])
    assert (one.kernel, one.reason, dict(one.faults)) == ("mine", "", {"other": "max abs error 3"})
    assert "wrong: other: max abs error 3" in line_text(one, best=False)


@pytest.mark.parametrize("seed", range(60))
def test_no_verdict_of_a_hostile_machine_steers_a_terminal_or_stops_a_session(seed: int) -> None:
    """Names, reasons and rows with texts of others: a line, shown letter by letter, or an error of ours."""
    dice = random.Random(seed)
    text = lambda: dice.choice(TEXTS)[:200]  # noqa: E731
    names = ["mine", dice.choice(("torch", "mine", text()))]
    case = {"case_id": "c1", "file": "case-1.csv", "skipped": {dice.choice((*names, text())): text()},
            "stopped": {text(): dice.choice(("race", text()))}}  # fmt: skip
    made = {"number": 1, "kernels": names, "baselines": ["torch", text()], "cases": [case] * dice.choice((0, 1, 3)),
            "seconds": dice.choice((3.0, *NUMBERS)), "reason": dice.choice(("", "", "", text()))}  # fmt: skip
    if dice.random() < 0.3:
        made[dice.choice(sorted(made))] = dice.choice((*OTHERS, *NUMBERS, *TEXTS))
    cells = [row.split(",") for row in rows("c1", dice).decode().splitlines()]
    for _ in range(dice.choice((0, 1, 5))):
        row = dice.choice(cells[1:])
        row[dice.randrange(len(row))] = dice.choice((*TEXTS, *map(str, NUMBERS))).replace(",", ";")
    data = "\n".join(map(",".join, cells)).encode("utf-8", "replace")
    try:
        found = parse_verdict(json.dumps(made).encode(), 1)
    except ResultsUnreadable:
        return
    lines = [read_line(1, found, [("c1", data)]), read_line(2, verdict(1), [("c1", rows("c1", dice))])]
    shown = io.StringIO()
    view = VersionsView(Console(file=shown, width=100))
    board = rank_versions(lines, Decimal(1))
    view.say(line_text(lines[0], best=True))
    for board_line in board_lines(board):
        view.say(board_line)
    view.console.print(versions_table(lines, lines[0], 9))
    steering = [one for one in shown.getvalue() if unicodedata.category(one) in ("Cc", "Cf", "Cs", "Zl", "Zp")]
    assert set(steering) <= {"\n", "\t"}  # a table in a pipe has tabs between its cells
    documents = [LeaderboardDocument.of(board, schema=1), *(VersionDocument.of(one, schema=1) for one in lines)]
    json.dumps([to_plain(one) for one in documents], allow_nan=False)

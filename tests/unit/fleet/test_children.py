"""The list of children: complete, immutable, breadth first."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.errors import ConfigError, DocumentUnreadable, NotFound
from orchestrator.core.fleet.jobs import split_into_jobs
from orchestrator.core.fleet.state import ChildLine, encode_line
from orchestrator.core.fleet.sweep import (
    Sweep,
    children_document,
    chunk_cases,
    expand_cells,
    expand_children,
    of_flags,
    parse_sweep,
    read_children,
    split_at_commas,
    text_of,
)
from orchestrator.core.names import (
    SHARDS,
    child_run,
    control_object,
    fleet_id,
    is_fleet_id,
    job_name,
    line_object,
    lines_prefix,
)
from orchestrator.core.naming import instance_name, is_run_id
from orchestrator.store.fleets import FleetRecord, FleetStore, list_fleets
from tests.support.memory_bucket import MemoryBucket
from tests.support.simulated_clock import SimulatedClock
from tests.unit.core.builders import T0

FLEET = "fleet-20261122-040506-7f3a"
GPUS = ("l4", "t4", "h100")
CASES = tuple(f"case-{n}" for n in range(7))
values = st.lists(st.integers(0, 99), min_size=1, max_size=4, unique=True)


@st.composite
def sweeps(draw: st.DrawFn) -> Sweep:
    gpus = draw(st.lists(st.sampled_from(GPUS), min_size=1, unique=True))
    axes = {"gpu": gpus, "measure.repeats": draw(values), "measure.seed": draw(values)}
    exclude = []
    if draw(st.booleans()) and len(axes["measure.repeats"]) > 1:
        exclude = [{"gpu": gpus[0], "measure.repeats": axes["measure.repeats"][0]}]
    return Sweep(
        axes=axes,
        exclude=exclude,
        repeats=draw(st.integers(1, 3)),
        cases_per_child=draw(st.sampled_from([0, 2, 7, 50])),
        seed=draw(st.integers(0, 5)),
    )


@given(sweeps())
def test_every_repeat_of_every_chunk_of_every_cell_is_in_the_list_once(sweep: Sweep) -> None:
    children = expand_children(sweep, lambda _: CASES)
    pieces = chunk_cases(CASES, sweep.cases_per_child)
    wanted = {
        (cell, repeat, chunk)
        for cell in expand_cells(sweep)
        for repeat in range(1, sweep.repeats + 1)
        for chunk in range(len(pieces))
    }
    assert len(children) == len(wanted)
    assert {(c.cell, c.repeat, c.chunk) for c in children} == wanted
    assert [child.index for child in children] == list(range(len(children)))
    whole = [child for child in children if child.repeat == 1 and child.cell == children[0].cell]
    assert sorted(case for child in whole for case in child.cases or CASES) == sorted(CASES)


@given(sweeps())
def test_a_fleet_that_ends_early_has_every_first_repeat_before_any_second(sweep: Sweep) -> None:
    children = expand_children(sweep, lambda _: CASES)
    assert all(one.repeat <= other.repeat for one, other in pairwise(children))


@given(sweeps())
def test_the_question_is_asked_of_every_gpu_before_the_next_question(sweep: Sweep) -> None:
    children = [child for child in expand_children(sweep, lambda _: CASES) if child.repeat == 1]
    asked = [(child.cell.question, child.chunk) for child in children]
    changes = sum(one != other for one, other in pairwise(asked)) + 1
    assert changes == len(set(asked))


@given(sweeps())
def test_the_same_sweep_makes_the_same_list_and_it_survives_the_bucket(sweep: Sweep) -> None:
    children = expand_children(sweep, lambda _: CASES)
    assert expand_children(Sweep.model_validate(sweep.model_dump()), lambda _: CASES) == children
    assert read_children(json.loads(json.dumps(children_document(children)))) == children


def test_children_of_practice_are_named_after_what_is_measured_on_every_client() -> None:
    children = tuple(
        replace(child, label="cpu") for child in expand_children(Sweep(axes={"gpu": ["l4", "t4"]}), lambda _: ())
    )
    document = json.loads(json.dumps(children_document(children)))
    assert [child.run_id(FLEET).split("-")[2] for child in read_children(document)] == ["cpux7f3a", "cpux7f3a"]
    with pytest.raises(ValueError, match="a label that no fleet has"):
        read_children(document | {"label": "../x"})


def test_another_seed_is_another_order() -> None:
    axes = {"gpu": ["l4"], "measure.seed": list(range(40))}
    one, other = (expand_children(Sweep(axes=axes, seed=seed), lambda _: ()) for seed in (1, 2))
    assert one != other
    assert {child.cell for child in one} == {child.cell for child in other}


@given(sweeps(), st.integers(1, 9))
def test_jobs_have_one_gpu_keep_the_order_and_lose_no_child(sweep: Sweep, most: int) -> None:
    children = expand_children(sweep, lambda _: CASES)
    jobs = split_into_jobs(children, most)
    assert sorted(child.index for job in jobs for child in job) == list(range(len(children)))
    for job in jobs:
        assert 1 <= len(job) <= most
        assert len({child.cell.gpu for child in job}) == 1
        assert [child.index for child in job] == sorted(child.index for child in job)


@given(st.sampled_from(GPUS), st.integers(0, 65_535))
def test_a_childs_run_is_named_by_its_place_and_found_by_its_name(gpu: str, index: int) -> None:
    run = child_run(FLEET, gpu, index)
    assert is_run_id(run)
    assert int(run.rpartition("-")[2], 16) == index
    assert len(instance_name(run, 12)) <= 63, "a VM is called by it"


def test_names_are_ours_and_bounded() -> None:
    assert fleet_id(T0, "7F3Abcd") == "fleet-20261121-040506-7f3a"
    assert is_fleet_id(FLEET)
    assert not is_fleet_id("fleet-1")
    assert not is_run_id(FLEET)
    assert job_name(FLEET, 3) == f"bench-{FLEET}-3"
    assert line_object(FLEET, 5).startswith(f"fleets/{FLEET}/index/")
    with pytest.raises(ValueError, match="no name"):
        child_run(FLEET, "l4", 65_536)


def test_more_children_than_names_are_refused_with_what_helps() -> None:
    sweep = Sweep(axes={"gpu": ["l4"], "measure.seed": list(range(300))}, repeats=300)
    with pytest.raises(ConfigError, match="90,000 children; a fleet has at most 65,536"):
        expand_children(sweep, lambda _: ())


def test_a_sweep_from_options_is_the_sweep_from_a_file() -> None:
    text = """
    axes: {gpu: [l4, h100], measure.cache: [cold, warm]}
    repeats: 3
    cap_usd: 80
    shares: {h100: 60%}
    """
    of_file = parse_sweep(text, source="sweep.yaml")
    fields = {"repeats": 3, "cap_usd": 80, "shares": {"h100": 0.6}}
    assert of_flags(["l4,h100"], ["measure.cache=cold,warm"], fields) == of_file
    assert len(expand_children(of_file, lambda _: ())) == 12


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("axes: {gpu: [l5]}", "unknown GPU 'l5'"),
        ("axes: {}", "axes.gpu is required"),
        ("axes: {gpu: [l4]}\nrepeats: two", "sweep.yaml:2: repeats"),
        ("axes: {gpu: [l4]}\nshares: {t4: 50%}", "not among the GPUs"),
        ("axes: {gpu: [l4, l4]}", "a value twice"),
        ("axes: {gpu: [l4]}\nexclude: [{measure.seed: 1}]", "which is not an axis"),
        ("axes: {gpu: [l4]}\nexclude: [{gpu: h100}]", "sweep.yaml: exclude: gpu is never h100; it is l4"),
        ("axes: {gpu: [l4]}\nengine: hosts", "needs `hosts"),
        ("axes: {gpu: [l4]}\nengine: hosts\nhosts: [ada@box, b, ada@box]", "hosts has ada@box twice"),
        ("axes: {gpu: [l4]}\nengine: hosts\nhosts: ['a b']", "hosts: 'a b' is not a host"),
        ("axes: {gpu: [l4]}\nslurm: {login: -oProxyCommand=x}", "slurm.login: '-oProxyCommand=x' is not a host"),
        ("gpu: l4", "gpu"),
        ("- l4", "expected keys and values"),
        ("axes: [", "not YAML"),
    ],
)
def test_what_is_wrong_with_a_sweep_is_said_with_its_place(text: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what.replace(".", r"\.").replace("{", r"\{")):
        parse_sweep(text, source="sweep.yaml")


def test_a_sweep_without_a_cell_is_refused() -> None:
    with pytest.raises(ConfigError, match="no cell"):
        expand_cells(Sweep(axes={"gpu": ["l4"]}, exclude=[{"gpu": "l4"}]))


def test_values_keep_their_type_on_the_way_through_text() -> None:
    assert [text_of(value) for value in ("cold", "12", 12, True, None, [1, 2])] == [
        "cold", '"12"', "12", "true", "null", "[1, 2]",
    ]  # fmt: skip
    assert split_at_commas("[a, b],c,d") == ["[a, b]", "c", "d"]


# A fleet in the bucket: few calls however many children, and documents that are not ours stop nothing.


STORED_FLEET = "fleet-20261122-040506-7f3a"
SWEEP = Sweep.model_validate({"axes": {"gpu": ["l4", "t4"], "measure.seed": list(range(50))}, "repeats": 10})
CHILDREN = expand_children(SWEEP, lambda _: ())
RECORD = FleetRecord(
    fleet=STORED_FLEET, engine="slurm", mode="host", user="ada", sweep=SWEEP, created_at=T0, ends_at=T0 + timedelta(hours=4),
    hold_usd=Decimal("1.5"), usd_per_hour={"l4": Decimal("0.36")},
)  # fmt: skip


def store(bucket: MemoryBucket) -> FleetStore:
    return FleetStore(bucket, SimulatedClock(), STORED_FLEET)


@pytest.fixture
def bucket() -> MemoryBucket:
    made = MemoryBucket()
    store(made).create(RECORD, CHILDREN)
    return made


def test_a_look_at_a_thousand_children_takes_nineteen_calls(bucket: MemoryBucket) -> None:
    store(bucket).write([ChildLine(index, "stored", 1, "n1") for index in range(len(CHILDREN))])
    before = bucket.calls
    mine = store(bucket)
    assert mine.record() == RECORD
    children = mine.children()
    assert children == CHILDREN
    assert not mine.control().paused
    assert mine.state(children).counts == {"stored": 1000}
    assert bucket.calls - before == 19


def test_ten_thousand_children_take_no_more_calls_than_a_thousand_and_no_second_page() -> None:
    sweep = SWEEP.model_copy(update={"repeats": 100})
    bucket, children = MemoryBucket(), expand_children(sweep, lambda _: ())
    store(bucket).create(RECORD, children)
    store(bucket).write([ChildLine(index, "running", 1, "n1") for index in range(len(children))])
    before = bucket.calls
    mine = store(bucket)
    mine.record()
    assert mine.state(mine.children()).counts == {"running": 10_000}
    mine.control()
    assert bucket.calls - before == 19
    assert max(len(bucket.list(lines_prefix(STORED_FLEET, digit))) for digit in SHARDS) < 1000, "what a page has"


def test_a_line_counts_only_under_its_own_name(bucket: MemoryBucket) -> None:
    bucket.replace(
        f"{lines_prefix(STORED_FLEET, '0')}7.json", b"{}", generation=None, metadata=encode_line(ChildLine(8, "stored"))
    )
    bucket.replace(line_object(STORED_FLEET, 9), b"{}", generation=None, metadata={"state": "stored", "child": "many"})
    assert store(bucket).state(CHILDREN).counts == {"waiting": 1000}


def test_a_line_that_says_nothing_new_is_not_stored_again(bucket: MemoryBucket) -> None:
    mine = store(bucket)
    mine.write([ChildLine(1, "stored", 2)])
    before = bucket.calls
    mine.write([ChildLine(1, "running", 1), ChildLine(1, "stored", 2)])
    assert bucket.calls == before


def test_documents_that_are_not_ours_are_named(bucket: MemoryBucket) -> None:
    bucket.replace(control_object(STORED_FLEET), b"[]", generation=None)
    with pytest.raises(DocumentUnreadable, match=r"control\.json"):
        store(bucket).control()
    with pytest.raises(NotFound, match="there is no fleet"):
        FleetStore(bucket, SimulatedClock(), "fleet-20261122-040506-0000").record()


def test_fleets_are_listed_by_their_names_alone(bucket: MemoryBucket) -> None:
    store(bucket).list_as({"state": "open"})
    bucket.create("fleet-index/somebody-elses.json", b"{}")
    assert list_fleets(bucket) == ((STORED_FLEET, {"state": "open"}),)

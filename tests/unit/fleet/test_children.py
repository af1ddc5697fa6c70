"""The list of children: complete, immutable, breadth first."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.errors import ConfigError
from orchestrator.core.fleet.jobs import split_into_jobs
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
from orchestrator.core.names import child_run, fleet_id, is_fleet_id, job_name, line_object
from orchestrator.core.naming import instance_name, is_run_id
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

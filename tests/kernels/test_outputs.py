"""What programs print of themselves is read as data, in five formats, and what is none is refused with the place."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.forms.outputs import READERS, Unreadable, read_output

NOWHERE = Path("/nonexistent")


def test_repetitions_of_google_benchmark_are_samples_and_an_error_is_a_reason() -> None:
    repeated = [
        {"name": "copy/8", "run_type": "iteration", "repetition_index": at, "real_time": t, "time_unit": "us"}
        for at, t in enumerate((1.5, 2.5))
    ]
    median = {"run_type": "aggregate", "aggregate_name": "median"}
    summed = {"name": "copy/8_median", "run_name": "copy/8", **median, "real_time": 9}
    alone = {"name": "add_median", "run_name": "add", **median, "real_time": 7e3}
    broken = {"name": "sub", "error_occurred": True, "error_message": "no device"}
    told = json.dumps({"context": {}, "benchmarks": [*repeated, summed, alone, broken]})
    copy, add, sub = read_output("google-benchmark", told, NOWHERE)
    assert (copy.name, copy.samples_us) == ("copy/8", [1.5, 2.5])
    assert (add.name, add.samples_us) == ("add", [7.0]), "an aggregate counts only where there is nothing else"
    assert (sub.samples_us, sub.skipped) == ([], "no device")


def test_pytest_benchmark_gives_every_round_or_its_median() -> None:
    saved = {"name": "test_sort[10]", "params": {"n": 10}, "stats": {"data": [1e-6, 2e-6], "median": 9}}
    unsaved = {"name": "test_sum", "params": None, "stats": {"median": 3e-6}}
    one, two = read_output("pytest-benchmark", json.dumps({"benchmarks": [saved, unsaved]}), NOWHERE)
    assert (one.name, one.axes, one.samples_us) == ("test_sort", {"n": "10"}, [1.0, 2.0])
    assert (two.name, two.samples_us) == ("test_sum", [3.0])


def test_commands_of_hyperfine_are_implementations_and_their_parameters_axes() -> None:
    told = [
        {"command": f"./{tool} --size={n}", "times": [n / 2, n / 4], "mean": 1, "parameters": {"size": str(n)}}
        for tool in ("naive", "tiled")
        for n in (1, 2)
    ]
    results = read_output("hyperfine", json.dumps({"results": told}), NOWHERE)
    assert [(one.name, one.implementation, one.axes) for one in results] == [
        ("", f"./{tool} --size={{size}}", {"size": n}) for tool in ("naive", "tiled") for n in ("1", "2")
    ]
    assert results[0].samples_us == [500_000.0, 250_000.0]
    same = [
        {"command": "sleep 1", "times": [1.0, 1.0], "exit_codes": [0, 3], "parameters": {"size": "2"}},
        {"command": "sleep 2", "times": [2.0]},
    ]
    one, two = read_output("hyperfine", json.dumps({"results": same}), NOWHERE)
    assert (one.implementation, two.implementation) == ("sleep 1", "sleep 2")
    assert (one.note, two.note) == ("1 of 2 runs ended with an exit code other than 0", "")


def google(*listed: dict[str, object]) -> str:
    return json.dumps(
        {"benchmarks": [{"run_type": "iteration", "real_time": 5, "time_unit": "us"} | one for one in listed]}
    )


def test_an_axis_or_a_pattern_names_implementations_within_a_program() -> None:
    families = google({"name": "BM_Naive/64"}, {"name": "BM_Tiled/64"}, {"name": "Copy"})
    naive, tiled, copy = read_output("google-benchmark", families, NOWHERE, r"BM_(\w+)", "prog")
    assert [(one.implementation, one.name) for one in (naive, tiled)] == [("Naive", "BM/64"), ("Tiled", "BM/64")]
    assert (copy.implementation, copy.name) == ("prog", "Copy"), "what does not match is kept as it is"
    tests = [
        {"name": "test_sort[a]", "fullname": f"t.py::test_sort[{by}]", "params": {"by": by}, "stats": {"median": 1}}
        for by in ("heap", "merge")
    ]
    results = read_output("pytest-benchmark", json.dumps({"benchmarks": tests}), NOWHERE, "by")
    assert [(one.implementation, one.name, one.axes) for one in results] == [
        (by, "t.py::test_sort", {}) for by in ("heap", "merge")
    ]
    with pytest.raises(Unreadable, match="no benchmark has the axis size; there are by"):
        read_output("pytest-benchmark", json.dumps({"benchmarks": tests}), NOWHERE, "size")
    with pytest.raises(
        Unreadable, match=r"no name of a benchmark matches Fast\(.\); there are BM_Naive/64, BM_Tiled/64"
    ):
        read_output("google-benchmark", families, NOWHERE, "Fast(.)")


def test_two_pytest_benchmark_tests_of_one_name_are_two_benchmarks() -> None:
    tests = [
        {"name": "test_matmul", "fullname": f"test_mm.py::{name}::test_matmul", "stats": {"data": [time] * 3}}
        for name, time in (("TestTorch", 1e-3), ("TestMine", 3e-3))
    ]
    torch, mine = read_output("pytest-benchmark", json.dumps({"benchmarks": tests}), NOWHERE)
    assert (torch.name, set(torch.samples_us)) == ("test_mm.py::TestTorch::test_matmul", {1000.0})
    assert (mine.name, set(mine.samples_us)) == ("test_mm.py::TestMine::test_matmul", {3000.0})
    alike = [
        {"name": "t", "fullname": f"t.py::t[{at}]", "params": {"f": "UNSERIALIZABLE"}, "stats": {"median": 1}}
        for at in "ab"
    ]
    results = read_output("pytest-benchmark", json.dumps({"benchmarks": alike}), NOWHERE)
    assert [one.name for one in results] == ["t.py::t[a]", "t.py::t[b]"]


TWICE = {
    "google-benchmark": google({"name": "copy"}, {"name": "copy"}),
    "google-benchmark, two families": google(
        {"name": "copy", "repetition_index": 0}, {"name": "copy", "repetition_index": 0}
    ),
    "pytest-benchmark": json.dumps({"benchmarks": [{"name": "t", "stats": {"median": 1}}] * 2}),
    "hyperfine": json.dumps({"results": [{"command": "sort", "times": [1.0]}] * 2}),
    "nvbench": json.dumps({"benchmarks": [{"name": "copy", "states": [{"summaries": []}] * 2}]}),
    "csv": "n,us\n4,1\n4,2\n",
    "csv, repeats": "n,repeat,us\n4,0,1\n4,0,2\n",
}


@pytest.mark.parametrize("name", TWICE)
def test_nothing_is_pooled_because_names_agree(name: str) -> None:
    with pytest.raises(Unreadable, match=r"2 results are called .*: they are not pooled; give them names of their own"):
        read_output(name.split(",")[0], TWICE[name], NOWHERE)


def test_a_time_of_zero_is_one_row_below_the_resolution_and_the_others_are_kept() -> None:
    tiny, copy = read_output("google-benchmark", google({"name": "tiny", "real_time": 0.0}, {"name": "copy"}), NOWHERE)
    assert tiny.skipped == "below the resolution of the program's clock: it reports a time of 0"
    assert (tiny.samples_us, copy.samples_us) == ([], [5.0])
    rounds = [{"name": "t", "stats": {"data": [0.0, 1e-6, 0.0]}}]
    (one,) = read_output("pytest-benchmark", json.dumps({"benchmarks": rounds}), NOWHERE)
    assert one.samples_us == [], "the times that are above 0 would be the slow ones"
    assert one.skipped.endswith("a time of 0, 2 of 3 times")
    zero, four = read_output("csv", "n,us\n1,0\n4,2.5\n", NOWHERE)
    assert (zero.skipped[:5], four.samples_us) == ("below", [2.5])


def test_failed_repetitions_and_missing_medians_are_rows_with_that_reason() -> None:
    broken = {"name": "copy", "repetition_index": 1, "error_occurred": True, "error_message": "no device"}
    mean = {"name": "add_mean", "run_name": "add", "run_type": "aggregate", "aggregate_name": "mean"}
    fit = {"name": "add_BigO", "run_name": "add_all", "run_type": "aggregate", "aggregate_name": "BigO"}
    copy, add = read_output(
        "google-benchmark", google({"name": "copy", "repetition_index": 0}, broken, mean, fit), NOWHERE
    )
    assert (copy.samples_us, copy.skipped) == ([], "1 of 2 repetitions: no device")
    assert (add.name, add.skipped) == ("add", "the program gave only mean, and no median")


def test_repetitions_unnumbered_by_an_old_google_benchmark_are_known_by_their_sums() -> None:
    total = {"name": "copy_mean", "run_name": "copy", "run_type": "aggregate", "aggregate_name": "mean"}
    (copy,) = read_output("google-benchmark", google({"name": "copy"}, {"name": "copy"}, total), NOWHERE)
    assert copy.samples_us == [5.0, 5.0]


def nvbench(**state: object) -> str:
    full = {"device": 0, "axis_values": [{"name": "N", "type": "int64", "value": "64"}], "summaries": [], **state}
    return json.dumps({"devices": [{"id": 0}], "benchmarks": [{"name": "copy", "states": [full]}]})


def test_nvbench_gives_samples_where_kept_else_its_mean_or_why_it_skipped(tmp_path: Path) -> None:
    mean = {"tag": "nv/cold/time/gpu/mean", "data": [{"name": "value", "type": "float64", "value": "2.5e-05"}]}
    (one,) = read_output("nvbench", nvbench(summaries=[mean]), tmp_path)
    assert (one.axes, one.samples_us) == ({"N": "64"}, [25.0])
    (tmp_path / "0.bin").write_bytes(struct.pack("<2f", 0.5, 0.25))
    kept = {"tag": "nv/json/bin:nv/cold/sample_times", "data": [{"name": "filename", "value": "0.bin"}]}
    (one,) = read_output("nvbench", nvbench(summaries=[mean, {**kept, "tag": "nv/cold/sample_times"}]), tmp_path)
    assert one.samples_us == [500_000.0, 250_000.0]
    (one,) = read_output("nvbench", nvbench(is_skipped=True, skip_reason="too large"), tmp_path)
    assert one.skipped == "too large"


def test_an_nvbench_cpu_benchmark_has_a_time_and_an_empty_summary_costs_nothing() -> None:
    def summary(tag: str, value: float) -> dict[str, object]:
        return {"tag": tag, "data": [{"name": "value", "type": "float64", "value": str(value)}]}

    cpu = [summary("nv/cpu_only/sample_size", 50), summary("nv/cpu_only/time/cpu/mean", 5e-5)]
    (one,) = read_output("nvbench", nvbench(device=None, summaries=cpu), NOWHERE)
    assert one.samples_us == [50.0]
    empty = {"tag": "nv/json/bin:nv/cold/sample_times", "name": "Samples Times File"}
    (one,) = read_output("nvbench", nvbench(summaries=[summary("nv/cold/time/gpu/mean", 5e-5), empty]), NOWHERE)
    assert (one.samples_us, one.note) == ([50.0], "its file of samples cannot be read, and its mean is used")


def test_a_file_of_samples_outside_the_program_s_folder_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "0.bin").write_bytes(struct.pack("<f", 0.5))
    (tmp_path / "below").mkdir()
    kept = {"tag": "nv/cold/sample_times", "data": [{"name": "filename", "value": "../0.bin"}]}
    (one,) = read_output("nvbench", nvbench(summaries=[kept]), tmp_path / "below")
    assert one.skipped == "the program gave no time"


def test_a_csv_has_one_column_of_time_and_every_other_is_an_axis() -> None:
    text = (
        "benchmark,implementation,n,repeat,us,skipped\n"
        "copy,mine,4,0,1.5,\ncopy,mine,4,1,2.5,\ncopy,theirs,4,,,too large\n"
    )
    mine, theirs = read_output("csv", text, NOWHERE)
    assert (mine.implementation, mine.axes, mine.samples_us) == ("mine", {"n": "4"}, [1.5, 2.5])
    assert (theirs.implementation, theirs.skipped) == ("theirs", "too large")


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("csv", "n,time\n1,2\n", "the first line must name one column of time"),
        ("csv", "n,us\n1\n", "line 2: not as many cells as the header"),
        ("csv", "n,us\n1,-2\n", "line 2: '-2' us is not a time"),
        ("csv", "n,us\n1,nan\n", "line 2: 'nan' us is not a time"),
        ("csv", "n,n,us\n1,2,3\n", "the first line names a column twice"),
        ("csv", "n,us\n", "csv without a benchmark"),
        ("google-benchmark", "Segmentation fault", "the output is not google-benchmark"),
        ("google-benchmark", "[]", "the output is not google-benchmark"),
        ("hyperfine", '{"results": [{"command": "x", "times": ["a"]}]}', "the output is not hyperfine"),
    ],
)
def test_what_is_no_result_is_refused_with_the_place(kind: str, text: str, words: str) -> None:
    with pytest.raises(Unreadable, match=words):
        read_output(kind, text, NOWHERE)


@given(st.sampled_from(sorted(READERS)), st.recursive(st.none() | st.booleans() | st.floats() | st.text(),
       lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["benchmarks", "results", "name", "times"]), inner)))  # fmt: skip
def test_no_document_makes_a_reader_do_anything_but_read_or_refuse(kind: str, document: object) -> None:
    try:
        read_output(kind, json.dumps(document), NOWHERE)
    except Unreadable:
        pass

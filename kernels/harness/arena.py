"""Measures a user's own implementations, each in a process of its own. This process runs no code of a user.

It decides the order of samples and when to stop, reads the clocks of the device, and writes verdicts and result files.
An implementation that crashes, hangs or runs out of memory gets a row with that reason; the others go on within the
same block.
"""

from __future__ import annotations

import contextlib
import secrets
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import torch

from kernels.harness import axes, processes
from kernels.harness.contenders import Bound, Built, Crew
from kernels.harness.facts import log_line
from kernels.harness.hands import (
    FIRST_BATCH,
    Absent,
    AnswerLimits,
    Hand,
    Place,
    RemoteTimer,
    Turn,
    files_within,
    remark_on,
)
from kernels.harness.input_sets import AIM, ASSUMED_CACHE_BYTES, MOST_SETS, Rotation, cache_bytes, plan_rotation
from kernels.harness.judging import (
    Judged,
    Outcome,
    Session,
    check_of,
    failure_outcome,
    send_outcome,
    suspecting_reference,
)
from kernels.harness.own import OwnCase
from kernels.harness.processes import Answered, Lost, Worker
from kernels.harness.remembering import remembering_fault
from kernels.harness.rivals import Rivals, probe_of
from kernels.harness.scratch import Scratch
from kernels.harness.spec import original_name
from kernels.harness.turns import Contender
from kernels.harness.users import Users
from kernels.harness.workload import BuildFailed, Call, Check, Unavailable

CHECKS_IN_EACH_REGIME = 3
"""In each regime on average this many samples of an implementation get new inputs, and their answers are judged."""
ROUNDS = 2
"""The number of different new inputs in a regime; all implementations get the same ones."""
COLLECTED, COLLECTED_SHARE = 2048, 0.1
"""At most so many answers of timed calls are judged at once. They are collected as long as copying and judging them has
taken at most this share of the time since the case began."""
COLLECTED_BYTES: Mapping[str, int] = {"cuda": 256 << 20, "cpu": 64 << 20}
COLLECTED_S = 0.05
"""Judging one batch of them should take no longer than this, in seconds."""
GRAPH_BYTES = 2 << 30
"""The answers of a graph's calls, each in memory of its own, may take so much."""
COLLECTED_ON_CPU_BYTES = 64 << 10
"""On a CPU only answers up to this size are collected: copies of larger ones change where the allocator puts the next
ones, and calls of 2 ms were then seen to take half as long."""
REPEATED = 600
"""So many answers are judged after timing, where there is the time for it. In 600 calls a fault of one call in a
hundred is seen in 997 of 1,000 runs."""
REPEATED_BYTES: Mapping[str, int] = {"cuda": 1 << 30, "cpu": 64 << 20}
"""About so many bytes of them are judged at once, but at most an eighth of what is free."""
REPEATED_S, REPEATED_SHARE = 2.0, 0.1
"""For how long: seconds, or this share of the time for which the case was timed, whichever is longer."""
PINGS = 7
ROOM_FOR_CALLS = 8
"""First calls are made at once if free memory has room for so many times the inputs of all implementations."""
LOADED_AT_ONCE = 16
IMPLAUSIBLE = 1.5
"""A rate of more than this many times the best rate of the device is not plausible. The margin is for caches, which are
faster than memory, and for the varying clock of a chip."""
DISHONEST_CLOCK = 4.0
CLOCK_LEAST_S = 0.005
CLOCK_LEAST_SAMPLES = 5
"""With fewer samples, each may have waited for a busy machine. The shortest does not count: it may be too short."""


@dataclass
class Arena:
    """All processes of one step. Timed inputs are drawn from `seed`, checked ones from `secrets`."""

    device: torch.device
    seed: int
    cache: str
    blocks: int
    limits: AnswerLimits
    start: Callable[[str], Worker]
    judge: Hand
    baselines: Sequence[str]
    writes: bool = False
    """Whether answers are written into tensors among the inputs."""
    hands: dict[str, Hand] = field(default_factory=dict)
    turns: dict[str, Turn] = field(default_factory=dict)
    failed_tests: Mapping[str, tuple[str, bool]] = field(default_factory=dict)
    wrong: dict[str, Check] = field(default_factory=dict)
    judged_calls: dict[str, int] = field(default_factory=dict)
    """The number of calls of each implementation in this case whose answers were judged."""
    sizes: list[int] = field(default_factory=list)
    roof: dict[str, float] = field(default_factory=dict)
    rounds: list[int] = field(default_factory=list)
    case_began: float = 0.0
    collecting_s: float = 0.0
    """The seconds since then in which collected answers were copied and judged."""
    rivals: Rivals | None = None
    """What the processes do while others are timed in this case; None before it is timed."""
    probe: Callable[[], bool] | None = None
    """Whether the device is busy, as no worker says."""
    places: dict[str, list[int]] = field(default_factory=dict)
    proven: set[str] = field(default_factory=set)
    """Implementations that have answered. If the device fails before that, the device itself may be the cause."""
    trusted: set[str] = field(default_factory=set)
    """Baselines of a session judged while and after they were timed; later only their first answer to new inputs is."""
    repeated_baselines: set[str] = field(default_factory=set)
    """Baselines of which many calls, and what they remember, were judged in a case before. A fault of theirs makes no
    kernel look faster."""
    lends: bool | None = None
    """Whether answers can be copied on the device; None before it was tried."""
    last_seed: tuple[str, int] = ("", 0)
    """A case, and the seed of the inputs on which all its implementations are checked at its end."""
    begun: dict[str, Mapping[str, Any] | Exception] = field(default_factory=dict)
    """What came of binding the implementations whose first calls were begun together."""
    scratch: Scratch = field(default_factory=Scratch)
    users: Users | None = None
    """The users of the processes, if these have users of their own."""
    quiet: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext
    """The context in which times are measured."""
    sanitize: Callable[[str, OwnCase, int], str] | None = None
    """What a sanitizer finds in one call of an implementation, on the inputs of a seed; None where none is wanted."""

    def hand(self, name: str) -> Hand:
        """The hand of an implementation. It is kept from case to case as long as its process lives."""
        if name not in self.hands:
            is_baseline = original_name(name) in self.baselines
            self.hands[name] = Hand(name, partial(self.start, name), self.limits, is_baseline=is_baseline)
        return self.hands[name]

    def folder(self, hand: Hand) -> str:
        """The folder into which an implementation writes its answers. Where it has a user of its own, that user may
        write there and the judge's may read."""
        owners = None if self.users is None else self.users.owners(original_name(hand.name))
        return str(self.scratch.folder_of(hand.name, owners))

    def release(self, name: str) -> None:
        """Ends the process of an implementation that will not be used again, and removes what is left of it."""
        if name in self.hands:
            self.hands.pop(name).end()
        self.scratch.remove_folder(name)
        if self.users is not None:
            self.users.release(name)

    def close(self) -> None:
        """Ends every process and removes every file."""
        hands = (*self.hands.values(), self.judge)
        for hand in hands:
            hand.kill()
        for hand in hands:
            hand.end()
        self.scratch.close()

    def verdict(self, hand: Hand, case: OwnCase, seed: int, answer: Mapping[str, Any]) -> Check:
        """The judge's verdict on an answer. Raises `Lost` and `Answered` if the judge itself fails."""
        if answer.get("fault"):
            return Check(False, float("nan"), float("nan"), str(answer["fault"]))
        self.judged_calls[hand.name] = self.judged_calls.get(hand.name, 0) + 1
        reply = self.ask_judge("judge", hand, case, answer, seed=seed)
        hand.answer_bytes = int(reply["bytes"])
        return check_of(reply)

    def ask_judge(
        self, op: str, hand: Hand, case: OwnCase, answer: Mapping[str, Any], **about: Any
    ) -> Mapping[str, Any]:
        """The judge's reply about an implementation's answer, which is lent no longer then. Raises `Lost` and
        `Answered` if the judge itself fails."""
        first = bool(self.baselines) and original_name(hand.name) == self.baselines[0]
        try:
            return self.judge.ask(
                op, case=dict(case.values), case_id=case.id,
                tree=answer.get("tree"), files=files_within(self.folder(hand), answer), baseline=first, **about,
            )  # fmt: skip
        except Lost as exc:
            raise Answered("workload", exc.reason("while the reference was computed")) from exc
        finally:
            if answer.get("lent"):
                hand.ask("taken")

    def writable(self, case: OwnCase) -> list[int]:
        """The indices of the inputs of a case into which answers may be written. Raises `Lost` and `Answered` if the
        judge itself fails. If the judge cannot make the inputs here, the implementation will report that."""
        if not self.writes:
            return []
        if case.id not in self.places:
            try:
                answer = self.judge.ask("writable", case=dict(case.values), seed=secrets.randbits(62))
            except Answered as exc:
                if exc.kind not in ("unavailable", "memory"):
                    raise
                self.judge.fault, answer = None, {"places": []}
            self.places[case.id] = [int(one) for one in answer["places"]]
        return self.places[case.id]

    def bound(self, name: str, case: OwnCase, seed: int, check_seed: int) -> tuple[Bound, Check, int]:
        """Binds an implementation to a case, calls it on new inputs, and has the answer judged. Returns the bound
        implementation, the verdict, and the size of one set of inputs in bytes. Raises `Unavailable` where it cannot
        run, and `Lost` or `Answered` where it failed."""
        hand = self.hand(name)
        inputs = self.begun.pop(name, None) or self.bind(hand, case, seed)
        if isinstance(inputs, Exception):
            raise inputs
        answer = hand.ask("check", **self.check_arguments(hand, check_seed))
        hand.seed, hand.collected, hand.batch = check_seed, 0, FIRST_BATCH
        check = self.verdict(hand, case, check_seed, answer)
        if not check.passed:
            check = replace(check, reason=check.reason + remark_on(hand))
        role = "baseline_" if original_name(name) in self.baselines else "kernel_"
        call = Call(role + original_name(name), Place(hand, 0), scope=self.scope(hand, case))
        return Bound(name, call), check, int(inputs["set_bytes"])

    def bind(self, hand: Hand, case: OwnCase, seed: int) -> Mapping[str, Any]:
        """Binds an implementation to a case, and returns the size of its inputs. Raises as `bound` does."""
        return hand.ask("bind", case=dict(case.values), seed=seed, writable=self.writable(case))

    def check_arguments(self, hand: Hand, seed: int) -> dict[str, Any]:
        """The arguments of the request for an answer to the inputs of a seed."""
        return {"seed": seed, "folder": self.folder(hand), "at": 0, "lend": self.can_lend(hand)}

    def begin_checks(self, names: Sequence[str], case: OwnCase, seed: int, check_seed: int) -> None:
        """Lets all implementations make their first calls at once, which may have much to compile; `bound` reads their
        answers in turn. Where memory might not suffice for all, they are only bound."""
        self.begun = {}
        for name in names:
            try:
                self.begun[name] = self.bind(self.hand(name), case, seed)
            except (Lost, Answered, Unavailable) as exc:
                self.begun[name] = exc
        ready = {name: reply for name, reply in self.begun.items() if not isinstance(reply, Exception)}
        needed = ROOM_FOR_CALLS * sum(int(reply["set_bytes"]) for reply in ready.values())
        for name in ready if needed <= processes.free_bytes(self.device) else ():
            self.hand(name).send_ahead("check", **self.check_arguments(self.hand(name), check_seed))

    def can_lend(self, hand: Hand) -> bool:
        """Whether the judge can copy from another process's memory on this device. It is tried once."""
        if self.lends is None:
            self.lends = False
            if self.device.type == "cuda":
                with contextlib.suppress(Lost, Answered):
                    reply = hand.ask("specimen")
                    self.lends = self.judge.ask("borrowed", files=reply["files"])["sums"] == [1023 * 512.0]
                hand.fault = self.judge.fault = None
        return self.lends

    def judge_case(self, session: Session, case: OwnCase, implementations: Sequence[str]) -> Judged:
        """Calls every implementation on new inputs and has it judged. The first baseline comes first, as its error is a
        limit for all."""
        check_seed, seed = secrets.randbits(62), axes.case_seed(case, self.seed, "inputs")
        self.wrong, self.sizes, self.judged_calls, self.turns = {}, [1], {}, {}
        self.case_began, self.collecting_s = time.perf_counter(), 0.0
        self.limits.clear()
        in_turn = sorted(implementations, key=lambda name: name not in self.baselines[:1])
        begins = [] if case.skip else [name for name in in_turn if name not in self.failed_tests]
        self.begin_checks(begins, case, seed, check_seed)
        outcomes = {name: self.outcome(name, case, seed, check_seed) for name in in_turn}
        outcomes = suspecting_reference(outcomes)
        for outcome in outcomes.values():
            send_outcome(session.facts, case, outcome)
        return Judged(case, None, None, tuple(outcomes[name] for name in implementations))

    def outcome(self, name: str, case: OwnCase, seed: int, check_seed: int) -> Outcome:
        """The outcome of one implementation on a case."""
        if case.skip:
            return Outcome(name, None, None, case.skip, wrong=False)
        if failure := self.failed_tests.get(name):
            failed = Check(False, float("nan"), float("nan"), failure[0]) if failure[1] else None
            return Outcome(name, None, failed, failure[0], wrong=True)
        for fresh in (name not in self.proven, False):
            try:
                bound, check, size = self.bound(name, case, seed, check_seed)
                break
            except (Lost, Answered, Unavailable) as exc:
                if not (fresh and isinstance(exc, Answered) and exc.sticky):
                    return failure_outcome(name, exc, "while it was checked")
                log_line(f"{case.id}: {name}: {exc.text}: once more, in another process")
        self.proven.add(name)
        if check.passed and self.sanitize is not None and name not in self.baselines and name == original_name(name):
            fault = self.sanitize(name, case, seed)
            check = replace(check, passed=not fault, reason=fault)
        if not check.passed:
            return Outcome(name, None, check, check.reason, wrong=True)
        self.sizes.append(size)
        return Outcome(name, bound, check, "", wrong=False)

    def spread_case(self, judged: Judged) -> tuple[Judged, Rotation]:
        """The implementations that passed, with as many input sets as cold caches need; one that fails meanwhile is
        left out."""
        cache_size = cache_bytes(self.device) or ASSUMED_CACHE_BYTES
        size, bounds = max(self.sizes), judged.bound
        free = max(1, processes.free_bytes(self.device) // max(1, len(bounds)))
        # What is larger than the cache passes it by itself; a second copy would only take memory.
        most = 1 if size >= AIM * cache_size else MOST_SETS[self.device.type]
        wanted = plan_rotation(self.cache, size, cache_size, free, most)
        sets, lost = wanted.sets, {}
        for one in bounds:
            try:
                hand = self.hand(one.implementation)
                hand.sets = int(hand.ask("spread", count=wanted.sets)["sets"])
                sets = min(sets, hand.sets)
            except (Lost, Answered, Unavailable) as exc:
                lost[one.implementation] = failure_outcome(one.implementation, exc, "while its inputs were copied")

        def ready(outcome: Outcome) -> Outcome:
            if outcome.bound is None or outcome.implementation in lost:
                return lost.get(outcome.implementation, outcome)
            hand, bound = self.hand(outcome.implementation), outcome.bound
            try:
                peak = hand.ask("peak")["bytes"]
            except (Lost, Answered, Unavailable) as exc:
                return failure_outcome(outcome.implementation, exc, "while its memory was measured")
            copies = tuple(Call(bound.backend, Place(hand, n), scope=bound.scope) for n in range(1, sets))
            return replace(outcome, bound=replace(bound, copies=copies, peak_bytes=peak))

        self.probe = self.probe or probe_of(self.device)
        timed = {one.implementation: self.hand(one.implementation) for one in bounds}
        self.rivals = Rivals(timed, self.probe)
        turns = wanted if sets == wanted.sets else plan_rotation(self.cache, size, cache_size, sets * size, sets)
        return replace(judged, outcomes=tuple(ready(outcome) for outcome in judged.outcomes)), turns

    def still_right(self, judged: Judged, *, has_lost: bool = False) -> Judged:
        """The verdicts after timing: on the answers of timed calls, on one more call, and on whether the times can be
        trusted. Of a candidate that has lost its race no time is published, and nothing more is asked."""

        def again(outcome: Outcome) -> Outcome:
            if outcome.bound is None:
                return outcome
            name = outcome.implementation
            fault = self.hand(name).fault
            if fault is not None:
                return failure_outcome(name, fault, "while it was timed")
            if (has_lost or name in self.trusted) and name not in self.wrong:
                self.hand(name).walls.clear()
                return outcome
            try:
                self.judge_collected(self.hand(name), cast(OwnCase, judged.case))
                fault_found = self.wrong.get(name) or self.once_more(name, cast(OwnCase, judged.case))
            except (Lost, Answered, Unavailable) as exc:
                return failure_outcome(name, exc, "after it was timed")
            if not fault_found.passed:
                return Outcome(name, None, fault_found, fault_found.reason, wrong=True)
            assert outcome.check is not None, "what was timed was checked before"
            return replace(outcome, check=replace(outcome.check, calls=self.judged_calls[name]))

        made = replace(judged, outcomes=tuple(again(outcome) for outcome in judged.outcomes))
        for hand in (*self.hands.values(), self.judge):
            hand.fault = None
            if hand.worker is not None:
                with contextlib.suppress(Lost, Answered, Unavailable):
                    hand.ask("leave")
        return made

    def once_more(self, name: str, case: OwnCase) -> Check:
        """The last check, on new inputs."""
        if self.last_seed[0] != case.id:
            self.last_seed = case.id, secrets.randbits(62)
        hand, seed = self.hand(name), self.last_seed[1]
        timed_s = sum(wall for wall, _, _ in hand.walls)
        answer = hand.ask("check", **self.check_arguments(hand, seed))
        fault = self.verdict(hand, case, seed, answer)
        if not fault.passed:
            return replace(fault, reason=f"right before timing, wrong after: {fault.reason}")
        with self.quiet():
            reason = self.afterthoughts(name, case)
        if reason:
            return replace(fault, passed=False, reason=reason)
        # The code of a control is judged where it is not one.
        if original_name(name) != name or name in self.repeated_baselines:
            return fault
        if hand.is_baseline:
            self.repeated_baselines.add(name)
        return self.repeated(hand, case, (seed, seed ^ 0xB0B), max(REPEATED_S, REPEATED_SHARE * timed_s)) or fault

    def judge_collected(self, hand: Hand, case: OwnCase) -> None:
        """Judges the answers of timed calls that the process has collected. All are to the inputs of one seed."""
        if not hand.collected or hand.name in self.wrong:
            return
        began, hand.collected = time.perf_counter(), 0
        answer = hand.ask("collected", folder=self.folder(hand), lend=self.can_lend(hand))
        check, calls = Check(False, float("nan"), float("nan"), str(answer["fault"])), 0
        if not answer["fault"]:
            reply = self.ask_judge("judge_repeated", hand, case, answer, seeds=[hand.seed])
            check, calls = check_of(reply), int(reply["calls"])
            self.judged_calls[hand.name] = self.judged_calls.get(hand.name, 0) + calls
        seconds = time.perf_counter() - began
        self.collecting_s += seconds
        hand.batch = min(COLLECTED, max(1, round(calls * min(4.0, COLLECTED_S / max(seconds, 1e-6)))))
        if not check.passed:
            self.wrong[hand.name] = replace(check, reason=f"in a timed call: {check.reason}"[:300])

    def plan_collecting(self, hand: Hand, turn: Turn, case: OwnCase) -> int:
        """How many answers of the next sample are collected. Judges those that the process holds if there is no room
        for more."""
        if hand.name in self.trusted or (self.device.type == "cpu" and hand.answer_bytes > COLLECTED_ON_CPU_BYTES):
            return 0
        spent_s = self.collecting_s + sum(each.collecting_s for each in self.turns.values())
        if spent_s > COLLECTED_SHARE * (time.perf_counter() - self.case_began):
            return 0
        wanted = min(turn.answers, self.batch_of(hand))
        if wanted and hand.collected + wanted > self.batch_of(hand):
            self.judge_collected(hand, case)
            wanted = min(turn.answers, self.batch_of(hand))
        return wanted

    def batch_of(self, hand: Hand) -> int:
        """How many answers of an implementation are judged at once."""
        return max(1, min(hand.batch, COLLECTED_BYTES[self.device.type] // max(1, hand.answer_bytes)))

    def graph_slots(self, hand: Hand) -> int:
        """How many answers of a graph's calls may each have memory of its own. Where caches are to be warm, none: calls
        that write to the same memory are part of that."""
        if self.cache == "warm":
            return 1
        free = processes.free_bytes(self.device) // (4 * max(1, len(self.hands)))
        return max(1, min(COLLECTED, min(GRAPH_BYTES, free) // max(1, hand.answer_bytes)))

    def repeated(self, hand: Hand, case: OwnCase, seeds: tuple[int, int], limit_s: float) -> Check | None:
        """The verdict on the first wrong answer of many calls on the inputs of two seeds in turn; None if all are
        right. It stops after `REPEATED` calls or `limit_s` seconds."""
        used = seeds[: hand.sets]
        began, made, most = time.perf_counter(), 0, 2
        room = min(REPEATED_BYTES[self.device.type], processes.free_bytes(self.device) // 4)
        per_batch = max(1, room // max(1, hand.answer_bytes))
        while made < REPEATED and (made == 0 or time.perf_counter() - began < limit_s):
            calls = max(len(used), min(most, per_batch, REPEATED - made))
            follows = per_batch > 1 and made + calls < REPEATED
            answer = hand.ask(
                "repeat", seeds=used, calls=calls,
                folder=self.folder(hand), lend=self.can_lend(hand), fresh=not made, keeps_memory=follows,
            )  # fmt: skip
            if answer.get("fault"):
                return Check(False, float("nan"), float("nan"), str(answer["fault"]))
            reply = self.ask_judge("judge_repeated", hand, case, answer, seeds=used)
            self.judged_calls[hand.name] = self.judged_calls.get(hand.name, 0) + int(reply["calls"])
            if not reply["passed"]:
                reason = f"right at first, wrong in one of {made + calls} more calls: {reply['reason']}"
                return replace(check_of(reply), reason=reason[:300])
            began = began if made else time.perf_counter()  # the first answers wait for the reference
            made += calls
            most = min(4 * most, REPEATED)
        return None

    def load(self, implementations: Sequence[str]) -> Crew:
        """Starts the processes of implementations, their controls and the judge at once, so that each loads while the
        others do. Returns for each name what came of it."""
        for hand in (self.judge, *map(self.hand, implementations[:LOADED_AT_ONCE])):
            hand.begin()
        return {name: self.finish_loading(name) for name in dict.fromkeys(map(original_name, implementations))}

    def finish_loading(self, name: str) -> Built | BuildFailed | Unavailable:
        """Waits for the implementation's process, which imports the workload and builds what has to be built."""
        try:
            self.hand(name).ready()
        except (Lost, Answered) as exc:
            if isinstance(exc, Answered) and exc.kind == "unavailable":
                return Unavailable(exc.text)
            return BuildFailed(exc.reason("while it was loaded"), remedy=getattr(exc, "remedy", ""))
        except Unavailable as exc:
            return exc
        return Built(Absent(), None)

    def scope(self, hand: Hand, case: OwnCase) -> Callable[[], AbstractContextManager[object]]:
        """The context around a sample. Now and then it gives the sample new inputs and has its answer judged."""

        @contextmanager
        def around() -> Iterator[None]:
            turn = self.turns.get(hand.name)
            chosen = secrets.randbelow(1 << 30) < (1 << 30) * CHECKS_IN_EACH_REGIME / self.blocks
            wanted = turn is not None and chosen and hand.name not in self.trusted
            seed = self.rounds[turn.checked % len(self.rounds)] if turn is not None and wanted else 0
            try:
                if wanted:
                    self.judge_collected(hand, case)
                    hand.ask("renew", seed=seed)
                    hand.seed = seed
                if turn is not None:
                    turn.wanted = wanted
                    turn.collect = 0 if wanted and turn.alone else self.plan_collecting(hand, turn, case)
                yield
                if wanted and turn is not None and hand.name not in self.wrong:
                    turn.checked += 1
                    fault = self.verdict(
                        hand, case, seed, hand.ask("answered", folder=self.folder(hand), lend=self.can_lend(hand))
                    )
                    if not fault.passed:
                        self.wrong[hand.name] = replace(fault, reason=f"in a timed call on new inputs: {fault.reason}")
            except (Lost, Answered) as exc:
                raise Unavailable(exc.reason("while it was timed")) from exc
            finally:
                if turn is not None:
                    turn.wanted, turn.collect = False, 0

        return around

    def timer(self, regime: str) -> Callable[[Contender], RemoteTimer]:
        """The timer of a regime for a contender. Raises `ValueError` for graph on a CPU, which has none."""
        if regime == "graph" and self.device.type != "cuda":
            raise ValueError("the graph regime replays a CUDA graph and needs a CUDA device")
        self.collecting_s += sum(turn.collecting_s for turn in self.turns.values())
        self.rounds, self.turns = [secrets.randbits(62) for _ in range(ROUNDS)], {}

        def make(contender: Contender) -> RemoteTimer:
            hand = cast(Place, contender.plans[0]).hand
            try:
                reply = hand.ask("timer", regime=regime, slots=self.graph_slots(hand) if regime == "graph" else 1)
            except (Lost, Answered) as exc:
                if isinstance(exc, Answered) and exc.kind == "unavailable":
                    hand.fault = None  # it cannot be timed in this regime, and may be in others
                raise Unavailable(exc.reason(f"while its timer was made ({regime})")) from exc
            turn = self.turns.setdefault(contender.implementation, Turn(int(reply["answers"]), regime != "graph"))
            made = RemoteTimer(hand, regime, int(reply["calls_made"]), float(reply["overhead_us"]), turn)
            return made if self.rivals is None else replace(made, watch=partial(self.rivals.watch, hand.name))

        return make

    def afterthoughts(self, name: str, case: OwnCase) -> str:
        """Why the times of an implementation cannot be trusted, as `untrusted` with the reason; empty where they can.
        Raises `Lost` and `Answered`."""
        hand = self.hand(name)
        shortest = next(iter(sorted(wall for wall, _, _ in hand.walls)[1:]), 0.0)
        most = max((said for _, said, _ in hand.walls), default=0.0)
        typical = statistics.median(each for _, _, each in hand.walls) if hand.walls else 0.0
        enough_samples = len(hand.walls) >= CLOCK_LEAST_SAMPLES
        hand.walls.clear()
        beyond = (self.rivals.fault_of(name) if self.rivals is not None else "") or self.beyond_roof(case, typical)
        if beyond:
            return beyond
        pings = [hand.round_trip_s() for _ in range(PINGS)]
        slack = CLOCK_LEAST_S + 10 * min(pings)
        if enough_samples and shortest > DISHONEST_CLOCK * most + slack and self.device.type == "cpu":
            return f"untrusted: it reports {most * 1e3:.3g} ms although at least {shortest * 1e3:.3g} ms passed"
        return "" if name in self.repeated_baselines else remembering_fault(hand, self.device)

    def beyond_roof(self, case: OwnCase, seconds: float) -> str:
        """Why a time cannot be right because the call did more arithmetic, or moved more bytes, than the device can;
        empty where it can."""
        if not (case.flops or case.bytes) or not seconds:
            return ""
        if not self.roof:
            self.roof = dict(self.judge.ask("roof"))
        for what, unit, amount in (("bytes", "GB/s", case.bytes), ("flops", "GFLOP/s", case.flops)):
            reached, most = amount / seconds / 1e9, float(self.roof[what]) / 1e9
            if reached > IMPLAUSIBLE * most:
                return f"implausible: {reached:.4g} {unit}, where this device was seen to reach {most:.4g}"
        return ""

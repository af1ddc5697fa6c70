"""One implementation of a user's own workload, in its process: it is bound to inputs, called and timed here."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any

import torch

from kernels.forms.definition import Arguments, BadWorkload, Definition, map_tensors
from kernels.harness import input_sets, timers
from kernels.harness.answers import (
    LEND_BYTES,
    Reply,
    answer_leaves,
    answers_equal,
    free_cached_memory,
    lend_answer,
    size_of,
    spoil_memory,
    stack,
    synchronize,
    unusable_reason,
    write_answer,
)
from kernels.harness.turns import Contender
from kernels.harness.workload import Unavailable

HUGE_BYTES = 1 << 30
"""With inputs of at least this size, memory is not kept for later use."""
CHANCE = (
    "its inputs differ from call to call: inputs() must draw them from its generator, as randn(…, generator=generator)"
)
TIDIED_BYTES = 64 << 20
"""After an answer, or for inputs, of at least this size, memory that was needed only to copy them is freed."""
OTHER_SHAPES = "its answers have other shapes from call to call"
LATER_S = 0.02
"""How long to wait, in seconds, for an implementation that goes on working after its call has returned."""


Fresh = tuple[Callable[[], Any], tuple[Any, ...]]
"""A call, and the outputs that were made for it alone."""


class Watched:
    """One call on one set of inputs. If asked to, it keeps what the last call returned."""

    __slots__ = ("call", "kept", "make_fresh")

    def __init__(self, call: Callable[[], Any], kept: Kept, make_fresh: Callable[[], Fresh]) -> None:
        self.call, self.kept, self.make_fresh = call, kept, make_fresh

    def __call__(self) -> None:
        if self.kept.every is not None:
            call, outs = self.make_fresh()
            returned = call()
            answer = (outs[0] if len(outs) == 1 else outs) if outs and returned is None else returned
            self.kept.answer, self.kept.by = answer, self
            self.kept.every.append((answer, self, outs))
            return
        answer = self.call()
        if self.kept.wanted:
            self.kept.answer, self.kept.by = answer, self


class Kept:
    """What the last of several calls returned, and which call it was."""

    def __init__(self) -> None:
        self.wanted = False
        self.answer: Any = None
        self.by: Watched | None = None
        self.every: deque[tuple[Any, Watched, tuple[Any, ...]]] | None = None
        """Every answer of late, its call and the outputs made for it, while a graph is captured."""


class Bench:
    """One implementation of a workload, on one case at a time."""

    def __init__(self, definition: Definition, name: str, device: torch.device) -> None:
        self.definition, self.device, self.name = definition, device, name
        self.record: dict[str, object] | None = None
        made = definition.implementations[name]
        if isinstance(made, dict):
            from kernels.forms.cuda_entry import CudaEntry

            entry = CudaEntry(made, definition.file.parent, device, definition.names)
            self.record = entry.record
            made = entry
        ready = getattr(made, "ready", None)
        if ready is not None:
            ready()
        self.function: Callable[..., Any] = made
        self.writable: frozenset[int] = frozenset()
        self.updates: tuple[int, ...] = ()
        """The indices of the input tensors that a call may update."""
        self.values: list[list[torch.Tensor]] = []
        """For each set of inputs, the values that those tensors have before a call."""
        self.kept = Kept()
        self.sets: list[tuple[Arguments, Any]] = []
        self.plans: list[Watched] = []
        self.timers: dict[str, Any] = {}
        self.case: dict[str, Any] = {}
        self.seed = 0
        self.shown: list[torch.Tensor] = []
        """Answers that the judge copies from this process."""
        self.keeps_memory = False
        """Whether memory of large answers is kept because more of them follow."""
        self.transient = 0
        """The bytes that a call takes beside its inputs; 0 until that is known."""
        self.make_timer = timers.timer_for
        self.graph_answers: list[tuple[Any, tuple[Any, ...]]] = []
        """The answers of the graph's calls, each in memory of its own, as the last replay has left them, and the
        outputs that were made for each."""
        self.timed_answers: list[Any] = []
        """Copies of the answers of timed calls that were not handed over yet, stacked by sample."""
        self.graph_kept: tuple[Any, Watched | None] = (None, None)
        self.timed_fault = ""
        """Why the answer of a timed call cannot be judged."""

    def bind(self, case: dict[str, Any], seed: int, writable: Sequence[int] = ()) -> Reply:
        """Makes one set of inputs for a case; its tensors with the indices `writable` are room for an answer."""
        self.writable, self.updates, self.values = frozenset(writable), (), []
        self.sets, self.plans, self.timers, self.case, self.seed = [], [], {}, case, seed
        self.transient, self.timed_answers, self.timed_fault, self.graph_answers = 0, [], "", []
        only = getattr(self.function, "refusal", None)
        reason = only(case) if only else ""
        if reason:
            raise Unavailable(reason)
        first = self.drawn(seed)
        self.updates = self.definition.update_places(first)
        self.writable |= frozenset(self.updates)
        self.add(first)
        size = sum(one.numel() * one.element_size() for one in first.tensors())
        return {"set_bytes": max(1, size), "free_bytes": input_sets.free_bytes(self.device)}

    def drawn(self, seed: int) -> Arguments:
        """New inputs from a seed."""
        generator = torch.Generator(device=self.device)
        generator.manual_seed(seed)
        return self.definition.inputs(self.case, self.device, generator)

    def add(self, arguments: Arguments) -> None:
        """Adds one more set of inputs, with its own outputs where the workload allocates them."""
        outs: tuple[Any, ...] = ()
        if self.definition.outputs is not None:
            made = self.definition.outputs(*arguments.args, **arguments.kwargs)
            outs = Arguments.of(made).args
            for one in outs:
                spoil_memory(one)
        self.sets.append((arguments, outs))
        tensors = arguments.tensors()
        self.values.append(self.values[0] if self.values else [tensors[place].clone() for place in self.updates])
        self.plans.append(Watched(self.call_on(arguments, outs), self.kept, lambda: self.fresh_call(arguments, outs)))

    def call_on(self, arguments: Arguments, outs: tuple[Any, ...]) -> Callable[[], Any]:
        """The call of the implementation on these inputs and outputs."""
        function, args, kwargs = self.function, (*outs, *arguments.args), dict(arguments.kwargs)
        bound = getattr(function, "bound", None)
        made: Callable[[], Any] = bound(self.case, outs, arguments) if bound else lambda: function(*args, **kwargs)
        return made

    def fresh_call(self, arguments: Arguments, outs: tuple[Any, ...]) -> Fresh:
        """The same call with outputs of its own. Nothing is written to them here: a captured graph would time that."""
        own_outs: tuple[Any, ...] = map_tensors(outs, torch.empty_like)
        return self.call_on(arguments, own_outs), own_outs

    def restore(self, places: Iterable[int] | None = None) -> None:
        """Gives the inputs that calls have updated their values again, in all sets or in those at `places`."""
        if not self.updates:
            return
        for place in range(len(self.sets)) if places is None else {*places}:
            tensors = self.sets[place][0].tensors()
            for at, values in zip(self.updates, self.values[place], strict=True):
                tensors[at].copy_(values)
        synchronize(self.device)

    def completed(self, answer: Any, place: int) -> Any:
        """The answer of a call on a set of inputs. One that returned nothing has written it into outputs or inputs."""
        arguments, outs = self.sets[place]
        if answer is None and outs:
            return outs[0] if len(outs) == 1 else outs
        return self.definition.updated(arguments) if answer is None and self.updates else answer

    def spread(self, count: int) -> Reply:
        """Makes as many copies of the inputs as memory allows, up to `count` sets."""
        try:
            while len(self.sets) < count:
                self.add(self.sets[0][0].mapped(lambda one: one.clone(memory_format=torch.preserve_format)))
        except (torch.OutOfMemoryError, MemoryError):
            pass
        return {"sets": len(self.sets)}

    def repeat(
        self, seeds: Sequence[int], calls: int, folder: str, lend: bool, fresh: bool, keeps_memory: bool = False
    ) -> Reply:
        """Makes `calls` calls one after the other without waiting between them, each on the values of the next seed in
        turn, and returns the answers to each seed, stacked. So what a call leaves unwritten holds the answer to another
        seed. There are no more seeds than sets of inputs; with `fresh` their values are written first. With
        `keeps_memory` the memory of the answers is left for those of the next request."""
        self.keeps_memory = keeps_memory
        if fresh:
            for place, seed in enumerate(seeds):
                self.refill(self.sets[place : place + 1], self.drawn(seed).tensors())
            synchronize(self.device)
        answers: list[list[Any]] = [[] for _ in seeds]
        for number in range(calls):
            place = number % len(seeds)
            outs = self.sets[place][1]
            for out in outs:
                spoil_memory(out)
            self.kept.wanted = True
            self.plans[place]()
            answer = self.completed(self.kept.answer, place)
            self.kept.answer, self.kept.by, self.kept.wanted = None, None, False
            faults = [fault for leaf in answer_leaves(answer) if (fault := unusable_reason(leaf, self.device))]
            if faults:
                return {"fault": faults[0], "files": [], "tree": None}
            answers[place].append(map_tensors(answer, torch.clone))
            del answer
            self.restore((place,))
        synchronize(self.device)
        return self.stacked_reply([listed for listed in answers if listed], "", folder, lend)

    def stacked_reply(self, answers: list[list[Any]], fault: str, folder: str, lend: bool) -> Reply:
        """The reply with each list of answers stacked, or with the fault. The lists are emptied."""
        try:
            self.kept.answer = [stack(listed) for listed in answers]
        except (RuntimeError, ValueError):
            fault = fault or OTHER_SHAPES
        for listed in answers:
            listed.clear()
        return self.reply_unless(fault, folder, lend)

    def reply_unless(self, fault: str, folder: str, lend: bool) -> Reply:
        """The reply with the stacked answers that are kept, or with the fault."""
        if fault:
            self.kept.answer = None
            return {"fault": fault, "files": [], "tree": None}
        return self.reply_with_kept(folder, lend)

    def renew(self, seed: int, sets: int | None = None, scale: float | None = None) -> Reply:
        """Writes the values of a seed into the inputs at the same addresses, in all sets or in the first `sets`. With
        `scale` floating-point numbers of two bytes or more are multiplied by it; the reply says whether any were."""
        fresh = self.drawn(seed).tensors()
        can_scale = [scale is not None and one.is_floating_point() and one.element_size() > 1 for one in fresh]
        self.refill(self.sets[:sets], [one * scale if can else one for one, can in zip(fresh, can_scale, strict=True)])
        self.seed = seed
        if self.large(HUGE_BYTES):
            self.tidy()
        synchronize(self.device)
        return {"scaled": any(can_scale)}

    def refill(self, sets: Sequence[tuple[Arguments, Any]], fresh: Sequence[torch.Tensor]) -> None:
        """Writes values into the inputs of `sets`, and values that are no answer into their outputs."""
        values = [fresh[place] for place in self.updates]
        self.values = [
            values if any(one is other for other in sets) else before
            for one, before in zip(self.sets, self.values, strict=True)
        ]
        for arguments, outs in sets:
            old = arguments.tensors()
            if len(old) != len(fresh) or any(a.shape != b.shape for a, b in zip(old, fresh, strict=True)):
                raise BadWorkload(f"{self.definition.file.name}: inputs of another seed have other shapes")
            for one, new in zip(old, fresh, strict=True):
                one.copy_(new)
            for one in outs:
                spoil_memory(one)

    def large(self, least: int) -> bool:
        """Whether a set of inputs takes at least `least` bytes."""
        return bool(self.sets) and size_of(self.sets[0][0].tensors()) >= least

    def tidy(self) -> None:
        """Frees the memory that was needed only to fill or copy inputs, and keeps what the next call needs."""
        free_cached_memory(self.device)
        if self.transient and self.device.type == "cuda":
            torch.empty(self.transient, dtype=torch.uint8, device=self.device)

    def call(self, at: int) -> Reply:
        """Makes one call that is not timed."""
        self.plans[at % len(self.plans)]()
        synchronize(self.device)
        self.restore((at % len(self.plans),))
        return {}

    def check(self, seed: int | None, folder: str, at: int, lend: bool = False) -> Reply:
        """Makes one call on new values, and returns its answer."""
        if seed is not None:
            self.renew(seed)
        self.kept.wanted = True
        began = time.perf_counter()
        self.plans[at % len(self.plans)]()
        synchronize(self.device)
        return {**self.answered(folder, lend), "seconds": time.perf_counter() - began}

    def remark(self) -> Reply:
        """What the form of the workload says about a wrong answer of the implementation; empty for nothing."""
        remark = getattr(self.function, "remark", None)
        return {"words": remark() if remark else ""}

    def answered(self, folder: str, lend: bool = False) -> Reply:
        """The kept answer of the last call, or what was wrong with how it came about."""
        answer, by = self.kept.answer, self.kept.by
        assert by is not None, "a call was made"
        place = self.plans.index(by)
        arguments = self.sets[place][0]
        self.kept.answer, self.kept.by, self.kept.wanted = None, None, False
        answer = self.completed(answer, place)
        faults = [fault for one in answer_leaves(answer) if (fault := unusable_reason(one, self.device))]
        if faults:
            return {"fault": faults[0], "files": [], "tree": None}
        at_once = map_tensors(answer, torch.clone)
        synchronize(self.device)
        time.sleep(LATER_S)
        if not answers_equal(answer, at_once):
            late = "untrusted: its output changed after the call had returned (work on another stream or thread)"
            return {"fault": late, "files": [], "tree": None}
        del answer
        fresh = self.drawn(self.seed)
        if not answers_equal(self.protected(arguments), self.protected(fresh)):
            if not answers_equal(self.protected(self.drawn(self.seed)), self.protected(fresh)):
                raise BadWorkload(f"{self.definition.file.name}: {CHANCE}")
            return {"fault": self.changed_inputs(), "files": [], "tree": None}
        del fresh
        self.restore()
        self.kept.answer = at_once
        del at_once
        return self.reply_with_kept(folder, lend)

    def reply_with_kept(self, folder: str, lend: bool) -> Reply:
        """The reply with the kept answer: as files in `folder`, or with its address on the device if it is large and
        `lend` is set. The answer is kept no longer."""
        answer, self.kept.answer = self.kept.answer, None
        if not lend or size_of(answer) < LEND_BYTES:
            return {"fault": "", **write_answer(answer, folder)}
        reply, self.shown = lend_answer(answer)
        del answer
        if size_of(self.shown) >= TIDIED_BYTES and not self.keeps_memory:
            free_cached_memory(self.device)
        return {"fault": "", **reply, "lent": True}

    def changed_inputs(self) -> str:
        """What to say of an implementation that wrote to inputs."""
        names = self.definition.names
        remedy = f'; inplace = ["{names[0]}"] in the workload names inputs that a call updates' if names else ""
        return f"untrusted: it changed its inputs{remedy}"

    def taken(self) -> Reply:
        """Frees the memory of an answer once the judge has copied it."""
        large = size_of(self.shown) >= TIDIED_BYTES and not self.keeps_memory
        self.shown.clear()
        if large:
            self.tidy()
        return {}

    def specimen(self) -> Reply:
        """A tensor that is lent to try out lending before any answer is lent."""
        reply, self.shown = lend_answer(torch.arange(1024.0, device=self.device))
        return reply

    def protected(self, arguments: Arguments) -> tuple[torch.Tensor, ...]:
        """The input tensors that an implementation must not write to."""
        return tuple(one for at, one in enumerate(arguments.tensors()) if at not in self.writable)

    def timer(self, regime: str, slots: int = 1) -> Reply:
        """Prepares to time a regime. The calls of a graph are captured now, so what they return is kept from now on:
        the answers of up to `slots` of them, each in memory of its own."""
        self.kept.wanted = is_graph = regime == "graph"
        if is_graph and slots > 1 and not self.updates:
            self.kept.every = deque(maxlen=slots)
        contender = Contender(self.name, tuple(self.plans), nullcontext)
        try:
            made = self.timers[regime] = self.make_timer(self.device, regime, exposed=True)(contender)
            if is_graph:
                self.graph_answers = self.distinct_answers(made.calls_made)
                self.graph_kept = (self.kept.answer, self.kept.by)
        finally:
            self.kept.wanted, self.kept.every = False, None
        self.restore()
        if self.large(TIDIED_BYTES):
            self.tidy()  # a capture leaves memory behind for the stream that it warmed up on
        answers = len(self.graph_answers) if is_graph else made.calls_made == 1
        return {"calls_made": made.calls_made, "overhead_us": made.overhead_us, "answers": int(answers)}

    def distinct_answers(self, calls: int) -> list[tuple[Any, tuple[Any, ...]]]:
        """The answers of the last `calls` calls, but for those whose memory a later one of them has written again."""
        answers: list[tuple[Any, tuple[Any, ...]]] = []
        seen = set()
        for returned, by, outs in list(self.kept.every or ())[-calls:][::-1]:
            answer = self.completed(returned, self.plans.index(by))
            leaves = answer_leaves(answer)
            faults = [fault for leaf in leaves if (fault := unusable_reason(leaf, self.device))]
            if faults:
                self.timed_fault = faults[0]
                return []
            places = tuple(leaf.data_ptr() for leaf in leaves if isinstance(leaf, torch.Tensor))
            if places not in seen:
                seen.add(places)
                answers.append((answer, outs))
        return answers[::-1]

    def sample(self, regime: str, first: int, keep: bool, collect: int = 0, at: int = 0) -> Reply:
        """Takes one sample, with its calls on the sets in turn, from set `first` on. With `keep` the last answer is
        kept to be judged alone; `collect` answers, of a graph from the one numbered `at` on, are copied after timing,
        to be judged with others."""
        made = self.timers[regime]
        count = len(self.plans)
        places = [(first + n) % count for n in range(made.calls_made)]
        again = keep and bool(self.updates) and made.calls_made > 1
        single = made.calls_made == 1 and regime != "graph"
        self.kept.wanted = single or (keep and not again)  # a single answer always outlives the timing
        timed = made([self.plans[place] for place in places])
        collecting_began = time.perf_counter()
        if single and not keep:
            answer = self.completed(self.kept.answer, places[0])
            self.kept.answer, self.kept.by, self.kept.wanted = None, None, False
            self.collect([answer] if collect else [])
            del answer
        elif regime == "graph" and collect and self.graph_answers:
            wanted = [self.graph_answers[(at + n) % len(self.graph_answers)] for n in range(collect)]
            self.collect([answer for answer, _ in wanted])
            if not keep:  # the answer that is judged alone may be one of these
                for _, outs in wanted:  # the next replay has to write them again
                    map_tensors(outs, spoil_memory)
        collecting_s = time.perf_counter() - collecting_began
        if self.updates and (again or not keep):
            synchronize(self.device)
            self.restore(places)
        if again:  # what many calls on one set have made of it is no answer: one more call is judged
            self.kept.wanted = True
            self.plans[places[-1]]()
        elif keep and regime == "graph":
            self.kept.answer, self.kept.by = self.graph_kept
        return {"timed": asdict(timed), "rest_s": made.rest_s(timed.latency_us), "collecting_s": collecting_s}

    def collect(self, answers: list[Any]) -> None:
        """Copies answers of one sample."""
        faults = [fault for leaf in answer_leaves(answers) if (fault := unusable_reason(leaf, self.device))]
        try:
            if answers and not faults:
                self.timed_answers.append(stack(answers))
                synchronize(self.device)
        except (RuntimeError, ValueError):
            faults = [OTHER_SHAPES]
        self.timed_fault = self.timed_fault or next(iter(faults), "")

    def collected(self, folder: str, lend: bool) -> Reply:
        """The answers of timed calls since the last request, stacked."""
        answers, self.timed_answers = self.timed_answers, []
        try:
            self.kept.answer = [stack(answers, torch.cat)] if answers else []
        except (RuntimeError, ValueError):
            self.timed_fault = self.timed_fault or OTHER_SHAPES
        del answers
        return self.reply_unless(self.timed_fault, folder, lend)

    def peak(self) -> Reply:
        """The bytes of device memory that one call takes beside its inputs; None where that is not known."""
        if self.device.type != "cuda":
            return {"bytes": None}
        torch.cuda.synchronize(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_allocated(self.device)
        self.plans[0]()
        torch.cuda.synchronize(self.device)
        self.restore((0,))
        self.transient = int(torch.cuda.max_memory_allocated(self.device)) - int(before)
        if self.large(HUGE_BYTES):
            self.tidy()
        return {"bytes": self.transient}

    def leave(self) -> Reply:
        """Drops everything of the case."""
        self.sets, self.plans, self.timers, self.kept.answer, self.kept.by = [], [], {}, None, None
        self.values, self.timed_answers, self.timed_fault, self.graph_answers = [], [], "", []
        self.graph_kept, self.shown, self.transient, self.keeps_memory = (None, None), [], 0, False
        forget = getattr(self.function, "leave", None)
        if forget is not None:
            forget()
        free_cached_memory(self.device)
        return {}

"""A trace set in FlashInfer-Bench's form: definitions with a reference in PyTorch, workloads that are its cases, and
solutions in Python or Triton.

The client has read the set; what it found is in a JSON file beside the folder. Answers are judged by FlashInfer-Bench's
rule, an absolute and a relative error of 1e-2, except that the absolute one is at most a tenth of the answer's own
size, and that samples are compared with the distribution that they are drawn from. Inputs that a workload calls random
are drawn anew from a secret seed; those of a definition without a workload have indices that fit its sizes.
"""

from __future__ import annotations

import json
import math
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from kernels.forms.definition import DTYPES, Arguments, BadWorkload, CaseValues, Definition
from kernels.forms.gpumode import clone_arguments, read_description
from kernels.forms.one_file import import_file
from kernels.harness.answers import answers_equal

BASELINE = "reference"
TOLERANCE = 1e-2
SHARE_OF_ANSWER = 0.1
"""The most that the absolute tolerance may be, as a share of the answer's root mean square."""
MATCHED: Mapping[str, float] = {"moe": 0.95}
"""The share of elements that must be right, by a definition's kind; all of them for other kinds."""
RANGES: Mapping[str, int] = {"int8": 128, "int16": 1024, "int32": 1024, "int64": 1024}
MOST_SIGMAS = 6.0
POOLS = ("num_pages", "max_num_pages", "state_cache_size", "max_seq_len", "num_experts", "vocab_size")
"""The axes into which indices point."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or an output. `shape` has axes; None for a number."""

    name: str
    shape: tuple[str, ...] | None
    dtype: torch.dtype
    dtype_name: str


class Task:
    """One definition."""

    def __init__(self, file: Path) -> None:
        data = json.loads(file.read_text(encoding="utf-8"))
        self.file, self.name, self.kind = file, str(data["name"]), str(data.get("op_type", ""))
        self.code: str = data["reference"]
        self.constraints = [str(one) for one in data.get("constraints") or ()]
        self.constants = {axis: one["value"] for axis, one in data["axes"].items() if one["type"] == "const"}
        self.inputs, self.outputs = (tensors(data[key]) for key in ("inputs", "outputs"))
        self.known: Callable[..., Any] | None = None

    def run(self, args: Sequence[Any]) -> Any:
        """The reference's answer."""
        if self.known is None:
            module = load_module({f"{self.name}_reference.py": self.code}, f"{self.name}_reference.py")
            self.known = module.run
        return answer_of(self, self.known(*args))

    def sizes(self, args: Sequence[Any]) -> dict[str, int]:
        """Every axis's size, by the inputs' shapes."""
        sizes = dict(self.constants)
        for tensor, value in zip(self.inputs, args, strict=True):
            if tensor.shape is not None and isinstance(value, torch.Tensor):
                sizes.update(zip(tensor.shape, value.shape, strict=True))
        return sizes


def tensors(described: Mapping[str, Mapping[str, Any]]) -> list[Tensor]:
    """The inputs or the outputs of a definition, in order."""
    return [
        Tensor(
            name,
            None if one.get("shape") is None else tuple(one["shape"]),
            DTYPES[one["dtype"]],
            str(one["dtype"]),
        )
        for name, one in described.items()
    ]


def load(path: Path) -> Definition:
    """The trace set that is described in the file `<folder>.json` beside a folder. Raises `BadWorkload`."""
    description = read_description(path)
    tasks = {name: Task(path / file) for name, file in description["definitions"].items()}
    cases = {key_of(case["values"]): case for case in description["cases"]}
    solutions = {name: json.loads((path / file).read_text()) for name, file in description["solutions"].items()}

    def entry(case: CaseValues) -> Mapping[str, Any]:
        entry: Mapping[str, Any] = cases[key_of(case)]
        return entry

    def inputs(case: CaseValues, device: torch.device, generator: torch.Generator) -> Arguments:
        posed = entry(case)
        task = tasks[posed["definition"]]
        return Arguments(tuple(Drawn(path, task, posed, device, generator).values()), {}, task.name)

    def right(arguments: Arguments) -> Any:
        return tasks[arguments.posed_by].run(clone_arguments(arguments).args)

    def writable(arguments: Arguments) -> list[int]:
        before = clone_arguments(arguments).tensors()
        tasks[arguments.posed_by].run(arguments.args)
        pairs = zip(arguments.tensors(), before, strict=True)
        return [at for at, (now, was) in enumerate(pairs) if not answers_equal(now, was)]

    def check(arguments: Arguments, output: Any) -> str:
        task = tasks[arguments.posed_by]
        if task.kind == "sampling":
            return wrong_samples(task, arguments.args, output)
        return wrong_answer(task, output, right(arguments))

    return Definition(
        name=str(description["name"]),
        file=path / next(iter(description["definitions"].values())),
        axes=tuple(description["cases"][0]["values"]),
        cases=tuple(case["values"] for case in description["cases"]),
        inputs=inputs,
        reference=right,
        implementations={
            BASELINE: Reference(tasks),
            **{name: Solution(tasks, solution) for name, solution in solutions.items()},
        },
        baselines=(BASELINE,),
        check=check,
        writable=writable,
        skip=lambda case, _device: str(entry(case)["skip"]),
        exact=False,
    )


def key_of(values: Mapping[str, Any]) -> str:
    """A case's values as the key of its description."""
    return json.dumps(dict(values), sort_keys=True)


class Drawn:
    """The inputs of one workload, made on a device from a generator."""

    def __init__(
        self, root: Path, task: Task, posed: Mapping[str, Any], device: torch.device, generator: torch.Generator
    ) -> None:
        self.root, self.task, self.posed, self.device, self.generator = root, task, posed, device, generator
        self.sizes = {**task.constants, **posed["axes"]}

    def values(self) -> list[Any]:
        """The inputs in the order of the definition."""
        return [self.value(tensor) for tensor in self.task.inputs]

    def value(self, tensor: Tensor) -> Any:
        """One input: a tensor, or a number."""
        described = self.posed["inputs"].get(tensor.name, {"type": "random"})
        if described["type"] == "scalar":
            return described["value"]
        if described["type"] == "safetensors":
            return self.stored(tensor, described)
        if tensor.shape is None:
            return self.number(tensor)
        shape = [self.sizes[axis] for axis in tensor.shape]
        if tensor.dtype_name in RANGES and not self.posed["uuid"]:
            return self.indices(tensor, shape)
        made = self.random(tensor, shape)
        if self.task.kind == "sampling" and tensor.name == "probs":
            return torch.softmax(made, dim=-1)
        if self.task.kind == "sampling" and tensor.name == "top_p":
            return made.sigmoid().clamp(0.05, 0.95)
        return made

    def random(self, tensor: Tensor, shape: Sequence[int]) -> torch.Tensor:
        """Normal numbers, clamped for 8-bit types; integers within the type's range; true and false alike."""
        if tensor.dtype is torch.bool:
            return torch.randint(0, 2, shape, device=self.device, generator=self.generator).bool()
        if tensor.dtype_name in RANGES:
            most = RANGES[tensor.dtype_name]
            drawn = torch.randint(-most, most, shape, device=self.device, generator=self.generator)
            return drawn.to(tensor.dtype)
        small = tensor.dtype.itemsize < 4  # weights of gigabytes would not fit in float32
        wide = torch.float16 if small else torch.float32
        drawn = torch.randn(shape, dtype=wide, device=self.device, generator=self.generator)
        return (drawn.clamp_(-2, 2) if tensor.dtype.itemsize == 1 else drawn).to(tensor.dtype)

    def number(self, tensor: Tensor) -> Any:
        """A number that no workload gives: small for an epsilon, the usual scale, else 1 or 0."""
        if tensor.dtype is torch.bool:
            return False
        if tensor.dtype_name in RANGES:
            return 0
        if "eps" in tensor.name:
            return 1e-6
        head = next((size for axis, size in self.sizes.items() if re.search("head_(dim|size)", axis)), 0)
        return 1 / math.sqrt(head) if "scale" in tensor.name and head else 1.0

    def indices(self, tensor: Tensor, shape: Sequence[int]) -> torch.Tensor:
        """Integers that fit the sizes of a definition without workloads: even offsets where a constraint gives the last
        one or the name says so, lengths, or different places in a pool."""
        total = next(
            (
                self.sizes[axis]
                for axis, name in re.findall(r"(\w+) == (\w+)\[-1\]\.item\(\)", "\n".join(self.task.constraints))
                if name == tensor.name and axis in self.sizes
            ),
            None,
        )
        pool = next((self.sizes[axis] for axis in POOLS if axis in self.sizes), 2)
        if total is None and re.search("indptr|cu_seqlens", tensor.name):
            total = next((size for axis, size in self.sizes.items() if axis.startswith(("total", "num_tokens"))), pool)
        if total is not None:
            return torch.linspace(0, total, shape[0], device=self.device).round().to(tensor.dtype)
        if "len" in tensor.name:
            most = self.sizes.get("page_size", 1) if "last_page" in tensor.name else pool
            return torch.full(shape, max(most, 1), dtype=tensor.dtype, device=self.device)
        if tensor.name == "top_k":
            return torch.randint(1, 100, shape, device=self.device, generator=self.generator).to(tensor.dtype)
        many = math.prod(shape)
        if many <= pool:
            places = torch.randperm(pool, device=self.device, generator=self.generator)[:many].reshape(*shape)
        else:
            places = torch.randint(0, max(pool, 1), shape, device=self.device, generator=self.generator)
        return places.to(tensor.dtype)

    def stored(self, tensor: Tensor, described: Mapping[str, Any]) -> torch.Tensor:
        """An input from a safetensors file. Raises `BadWorkload` if the file does not hold it as it should be."""
        path = self.root / described["path"]
        stored = stored_tensor(path, str(described["tensor_key"]))
        shape = tuple(self.sizes[axis] for axis in tensor.shape or ())
        if stored.dtype is not tensor.dtype or tuple(stored.shape) != shape:
            what = f"{described['tensor_key']} is {stored.dtype} {tuple(stored.shape)}, not {tensor.dtype} {shape}"
            raise BadWorkload(f"{path.name}: {what}")
        return stored.to(self.device)


STORED: Mapping[str, str] = {
    "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "BOOL": "bool", "F64": "float64", "U8": "uint8",
}  # fmt: skip


def stored_tensor(path: Path, key: str) -> torch.Tensor:
    """A tensor of a safetensors file: 8 bytes with the length of a header in JSON, the header, and the data. Raises
    `BadWorkload`."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            size = path.stat().st_size
            if length > size:
                raise ValueError("its header is longer than the file")
            header = json.loads(file.read(length))[key]
            begin, end = header["data_offsets"]
            file.seek(8 + length + begin)
            data = bytearray(file.read(end - begin))
        return torch.frombuffer(data, dtype=DTYPES[STORED[header["dtype"]]]).reshape(header["shape"])
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as exc:
        raise BadWorkload(f"{path.name}: cannot read the tensor {key}: {type(exc).__name__} {exc}") from exc


def load_module(sources: Mapping[str, str], main: str) -> ModuleType:
    """The module `main` among these sources, in a folder of its own. Raises `BadWorkload`."""
    folder = Path(tempfile.mkdtemp(prefix="solution-")).resolve()
    for name, text in sources.items():
        file = (folder / name).resolve()
        if not file.is_relative_to(folder):
            raise BadWorkload(f"{name} is not below its solution")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return import_file(folder / main, also=folder)


def answer_of(task: Task, made: Any) -> Any:
    """What a function returned, as one tensor, or a tuple in the order of the definition's outputs."""
    if isinstance(made, Mapping):
        made = tuple(made[one.name] for one in task.outputs)
    listed = tuple(made) if isinstance(made, (tuple, list)) else (made,)
    answer = tuple(
        one if isinstance(one, torch.Tensor) else torch.tensor(one, dtype=tensor.dtype)
        for one, tensor in zip(listed, task.outputs, strict=True)
    )
    return answer[0] if len(answer) == 1 else answer


class Reference:
    """The references of the definitions, as the baseline."""

    def __init__(self, tasks: Mapping[str, Task]) -> None:
        self.tasks = tasks

    def bound(self, _case: Mapping[str, Any], _outs: tuple[Any, ...], arguments: Arguments) -> Callable[[], Any]:
        """A call on these inputs."""
        task, args = self.tasks[arguments.posed_by], arguments.args
        return lambda: task.run(args)


class Solution:
    """A solution of one definition, imported when it is first wanted: only in its own process."""

    def __init__(self, tasks: Mapping[str, Task], solution: Mapping[str, Any]) -> None:
        self.tasks, self.solution, self.task = tasks, solution, tasks[str(solution["definition"])]
        self.function: Callable[..., Any] | None = None

    def refusal(self, case: Mapping[str, Any]) -> str:
        """Why the solution does not solve a case; empty where it does."""
        posed = case.get("definition", self.task.name)
        return "" if posed == self.task.name else f"it solves {self.task.name}"

    def ready(self) -> None:
        """Imports the solution."""
        if self.function is None:
            main, name = str(self.solution["spec"]["entry_point"]).split("::")
            sources = {one["path"]: one["content"] for one in self.solution["sources"]}
            self.function = getattr(load_module(sources, main), name, None)
            if not callable(self.function):
                raise BadWorkload(f"{main}:1: there is no function {name}(…)")

    def fills(self) -> bool:
        """Whether the function writes into outputs that it is given: as the solution says, or else by its number of
        parameters."""
        style = self.solution["spec"].get("destination_passing_style")
        if isinstance(style, bool):
            return style
        code = getattr(self.function, "__code__", None)
        return code is None or code.co_argcount != len(self.task.inputs)

    def bound(self, _case: Mapping[str, Any], _outs: tuple[Any, ...], arguments: Arguments) -> Callable[[], Any]:
        """A call on these inputs."""
        self.ready()
        function, task, args = self.function, self.task, arguments.args
        assert function is not None, "it is ready"
        if not self.fills():
            return lambda: answer_of(task, function(*args))
        sizes = task.sizes(args)
        device = next((one.device for one in args if isinstance(one, torch.Tensor)), torch.device("cpu"))
        outs = tuple(
            torch.empty([sizes[axis] for axis in one.shape or ()], dtype=one.dtype, device=device)
            for one in task.outputs
        )

        def call() -> Any:
            function(*args, *outs)
            return outs[0] if len(outs) == 1 else outs

        return call


def wrong_answer(task: Task, output: Any, expected: Any) -> str:
    """What is wrong with an answer; empty if nothing is."""
    given = output if isinstance(output, (tuple, list)) else (output,)
    right = expected if isinstance(expected, (tuple, list)) else (expected,)
    if len(given) != len(right):
        return f"{len(given)} outputs in the place of {len(right)}"
    for tensor, ours, theirs in zip(task.outputs, given, right, strict=True):
        fault = wrong_tensor(
            ours, theirs.to(ours.device), MATCHED.get(task.kind, 1.0), ordered="topk" not in tensor.name
        )
        if fault:
            return f"{tensor.name}: {fault}"
    return ""


def wrong_tensor(ours: torch.Tensor, right: torch.Tensor, matched: float, *, ordered: bool) -> str:
    """What is wrong with one output; empty if nothing is. Integers must be equal, in any order along the last axis if
    they are not `ordered`."""
    if ours.shape != right.shape or ours.dtype is not right.dtype:
        return f"{ours.dtype} {tuple(ours.shape)} in the place of {right.dtype} {tuple(right.shape)}"
    if not right.is_floating_point():
        a, b = (ours, right) if ordered or not right.ndim else (ours.sort(-1).values, right.sort(-1).values)
        count = int((a != b).sum().item())
        return f"{count:,} of {right.numel():,} integers differ" if count else ""
    x, y = ours.double(), right.double()
    finite = y[y.isfinite()]
    size = float(finite.square().mean().sqrt().item()) if finite.numel() else 0.0
    allowed = min(TOLERANCE, SHARE_OF_ANSWER * size)
    error = (x - y).abs()
    equal = (x == y) | (x.isnan() & y.isnan())
    bad = ~equal & ~((error <= allowed) | (error <= TOLERANCE * y.abs()))
    count = int(bad.sum().item())
    if count <= (1 - matched) * right.numel():
        return ""
    return f"{count:,} of {right.numel():,} elements differ by more than {allowed:.3g} and {TOLERANCE:.0%}"


def wrong_samples(task: Task, args: Sequence[Any], output: Any) -> str:
    """What is wrong with tokens drawn from probabilities; empty if nothing is. Each must be one that may be drawn, and
    their mean probability must be that of the distribution, within six standard errors."""
    given = {tensor.name: value for tensor, value in zip(task.inputs, args, strict=True)}
    samples = output[0] if isinstance(output, (tuple, list)) else output
    probs = filter_probs(given["probs"].double(), given.get("top_k"), given.get("top_p"))
    if samples.shape != probs.shape[:-1] or samples.dtype is not task.outputs[0].dtype:
        return f"{samples.dtype} {tuple(samples.shape)} in the place of a token for each row"
    tokens = samples.long().to(probs.device)
    if bool(((tokens < 0) | (tokens >= probs.shape[-1])).any().item()):
        return "a sample is no token"
    drawn = probs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    if bool((drawn <= 0).any().item()):
        return f"{int((drawn <= 0).sum().item())} of {drawn.numel()} samples have probability 0"
    mean = probs.square().sum(-1)
    spread = float((probs.pow(3).sum(-1) - mean.square()).clamp_min(0).sum().sqrt().item())
    off = float((drawn - mean).sum().abs().item())
    if off > MOST_SIGMAS * spread + 1e-9:
        return (
            f"the samples' mean probability is {off / max(spread, 1e-12):.3g} standard errors from the distribution's"
        )
    return ""


def filter_probs(probs: torch.Tensor, top_k: Any, top_p: Any) -> torch.Tensor:
    """The probabilities that are left after top-k and then top-p, which sum to 1. Ties at an edge are kept."""
    if top_k is not None:
        ordered = probs.sort(-1, descending=True).values
        k = torch.as_tensor(top_k, device=probs.device).long().reshape(-1, 1).expand(probs.shape[0], 1)
        edge = ordered.gather(-1, (k - 1).clamp(0, probs.shape[-1] - 1))
        kept = (probs >= edge) | (k <= 0) | (k >= probs.shape[-1])
        probs = probs * kept
        probs = probs / probs.sum(-1, keepdim=True)
    if top_p is not None:
        ordered = probs.sort(-1, descending=True).values
        p = torch.as_tensor(top_p, device=probs.device).double().reshape(-1, 1).expand(probs.shape[0], 1)
        inside = (ordered.cumsum(-1) - ordered <= p + 1e-6).sum(-1, keepdim=True)
        edge = ordered.gather(-1, (inside - 1).clamp_min(0))
        probs = probs * (probs >= edge)
        probs = probs / probs.sum(-1, keepdim=True)
    return probs

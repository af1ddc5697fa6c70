"""The drawing of the parts, as a test: imports point one way, and heavy libraries stay where they belong."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
BELOW_API = {"core", "ports", "store", "runs", "wiring", "analysis", "report"}
MAY_IMPORT = {
    "core": set(),
    "embedded": set(),
    "analysis": {"core"},
    "report": {"analysis", "core"},
    "ports": {"core"},
    "store": {"core", "ports"},
    "adapters": {"core", "ports", "store"},
    "runs": {"core", "ports", "store"},
    "wiring": {"core", "ports", "store", "runs", "adapters", "embedded"},
    "api": BELOW_API,
    "cli": {"api", *BELOW_API},
}
"""For each part of `orchestrator`, the parts that it may import."""
PURE = {
    "google", "googleapiclient", "fabric", "rich", "typer", "requests", "socket", "subprocess", "http", "urllib",
    "random",
}  # fmt: skip
"""What the core may never import: I/O, chance, clouds, terminals."""


def modules() -> list[Path]:
    return sorted(path for path in (ROOT / "orchestrator").rglob("*.py") if "_bundle" not in path.parts)


def part_of(path: Path) -> str:
    return path.relative_to(ROOT / "orchestrator").parts[0].removesuffix(".py")


class Outline(NamedTuple):
    """What these tests ask of a file, which is parsed once for all of them."""

    imports: tuple[ast.Import | ast.ImportFrom, ...]
    inside_functions: int
    """How many of its lines in functions import something."""
    functions: tuple[Function, ...]
    loaded_names: tuple[str, ...]
    """The modules that it loads by name."""


class Function(NamedTuple):
    name: str
    lines: int
    parameters: int


@cache
def outline(path: Path) -> Outline:
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    inside = {n.lineno for f in functions for n in ast.walk(f) if isinstance(n, ast.Import | ast.ImportFrom)}
    return Outline(
        tuple(node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)),
        len(inside),
        tuple(Function(one.name, (one.end_lineno or 0) - one.lineno + 1, parameters(one)) for one in functions),
        tuple(
            node.args[0].value
            for node in nodes
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "import_module"
            if node.args and isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str)
        ),
    )


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    names = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
    return len(names) - (names[:1] in (["self"], ["cls"])) + len(function.args.kwonlyargs)


def imports(path: Path) -> Iterator[str]:
    for node in outline(path).imports:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            if node.module == "orchestrator":
                yield from (f"orchestrator.{alias.name}" for alias in node.names)
            else:
                yield node.module or ""


@pytest.mark.parametrize("path", modules(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_module_imports_only_what_its_part_may(path: Path) -> None:
    own = part_of(path)
    if own == "__init__":
        return
    reached = {name.split(".")[1] for name in imports(path) if name.startswith("orchestrator.")} - {"__version__"}
    assert reached <= MAY_IMPORT[own] | {own}


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The strongly connected components with more than one member, by mutual reachability."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            for name in graph[waiting.pop()] - seen:
                seen.add(name)
                waiting.append(name)
        return seen

    reach = {name: reached(name) for name in graph}
    found = {frozenset(other for other in reach[name] if name in reach[other]) for name in graph if name in reach[name]}
    return sorted(sorted(circle) for circle in found)


def import_graph() -> dict[str, set[str]]:
    """Every module of the tool and of the kernels, and what it imports: at its top, inside functions, for the sake of
    types, and by a name that it gives to `import_module`."""
    files = {module_name(path): path for path in [*modules(), *sorted((ROOT / "kernels").rglob("*.py"))]}
    graph: dict[str, set[str]] = {}
    for name, path in files.items():
        graph[name] = set(outline(path).loaded_names) & set(files)
        for node in outline(path).imports:
            if isinstance(node, ast.Import):
                graph[name] |= {alias.name for alias in node.names} & set(files)
            elif isinstance(node, ast.ImportFrom):
                whole = {f"{node.module}.{alias.name}" for alias in node.names} & set(files)
                graph[name] |= whole or ({node.module or ""} & set(files))
        graph[name].discard(name)
    return graph


def test_no_modules_import_each_other_in_a_circle_wherever_the_import_stands() -> None:
    assert circles(import_graph()) == []


def test_a_circle_would_be_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]


FUNCTION_LEVEL_IMPORTS = 120
"""Of libraries that are slow to load, or may be missing; in the wiring, of our modules that a command may not need."""


MONEY = {"authorize", "hold", "settle", "add_cost", "take_back", "HoldTerms", "may_settle"}
"""What of the ledger's core takes money or gives it back."""


def test_paid_work_takes_and_gives_back_money_in_one_module_alone() -> None:
    users = {
        module_name(path)
        for path in modules()
        if part_of(path) in ("runs", "api", "wiring", "adapters")
        for node in outline(path).imports
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("orchestrator.core.ledger")
        if MONEY & {alias.name for alias in node.names}
    }
    assert users == {"orchestrator.runs.holds"}


ENGINE_NAMES = {"cloud", "slurm", "batch", "hosts"}


def test_only_wiring_compares_the_name_of_an_engine() -> None:
    found = []
    for path in modules():
        if part_of(path) in ("wiring", "embedded"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Compare):
                texts = {part.value for part in ast.walk(node) if isinstance(part, ast.Constant)}
                asks = any(isinstance(part, ast.Attribute) and part.attr == "engine" for part in ast.walk(node))
                if asks and texts & ENGINE_NAMES:
                    found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert found == []


def test_one_class_alone_drives_fleets() -> None:
    """Any other that judges what children did would have rules of its own."""
    callers = [
        path.relative_to(ROOT).as_posix() for path in modules() if "judge_retry(" in path.read_text(encoding="utf-8")
    ]
    assert sorted(callers) == ["orchestrator/core/fleet/state.py", "orchestrator/runs/fleet/follow.py"]


def test_the_public_package_stands_on_the_api_and_not_on_the_command_line() -> None:
    for path in (ROOT / "spotbench").rglob("*.py"):
        reached = {name.split(".")[1] for name in imports(path) if name.startswith("orchestrator.")}
        assert reached - {"__version__"} <= {"api", *BELOW_API}, path


def test_no_part_uses_the_public_package() -> None:
    assert not [path for path in modules() if any(name.split(".")[0] == "spotbench" for name in imports(path))]


def test_imports_stand_at_the_top_but_where_an_adapter_is_loaded_when_it_is_needed() -> None:
    inside = {path: outline(path).inside_functions for path in modules()}
    elsewhere = {module_name(path) for path, number in inside.items() if number and part_of(path) not in LOADS_LAZILY}
    assert elsewhere == set()
    assert sum(inside.values()) <= FUNCTION_LEVEL_IMPORTS


LOADS_LAZILY = {
    "wiring": "Google's clients and fabric take seconds to load, and all of it together more than a command's work",
    "adapters": "so do parts of Google's clients",
}
"""What may import inside functions, and why."""


@pytest.mark.parametrize(
    "path", [p for p in modules() if part_of(p) in ("core", "analysis", "report")], ids=lambda path: path.as_posix()
)
def test_the_core_the_statistics_and_the_report_do_no_io(path: Path) -> None:
    assert {name.split(".")[0] for name in imports(path)} & PURE == set()


@pytest.mark.parametrize("path", modules(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_google_and_fabric_stay_in_the_adapters(path: Path) -> None:
    heavy = {
        name
        for name in imports(path)
        if name.split(".")[0] in ("google", "fabric", "paramiko", "invoke", "googleapiclient", "google_crc32c")
    }
    # The embedded cloud keeps checksums as Cloud Storage does, by one function in C.
    assert not heavy or part_of(path) == "adapters" or (part_of(path) == "embedded" and heavy == {"google_crc32c"})


@pytest.mark.parametrize("folder", ["kernels", "startup"])
def test_what_runs_on_the_machine_knows_nothing_of_the_orchestrator(folder: str) -> None:
    for path in (ROOT / folder).rglob("*.py"):
        assert not any(name.startswith("orchestrator") for name in imports(path)), path


CUDA = "kernels/attention/cuda"
CUDA_PACKAGES = ("plan", "compile", "run", "ways", "backward", "calls")
"""Each imports from those before it, and `errors`; what callers meet lies above them all."""
CUDA_MET = {
    "__init__", "compile_gradients", "errors", "explain", "explaining", "kernel", "operator", "paged", "varlen",
}  # fmt: skip


@pytest.mark.parametrize("package", CUDA_PACKAGES)
def test_the_packages_of_the_cuda_kernel_import_one_way(package: str) -> None:
    below = {"errors", *CUDA_PACKAGES[: CUDA_PACKAGES.index(package) + 1]}
    own = CUDA.replace("/", ".")
    for path in (ROOT / CUDA / package).glob("*.py"):
        reached = {name.removeprefix(own).partition(".")[2] for name in imports(path) if name.startswith(own)}
        assert {name.partition(".")[0] for name in reached} <= below, path


def test_every_module_of_the_cuda_kernel_that_no_caller_meets_is_in_a_package() -> None:
    met = {path.stem for path in (ROOT / CUDA).glob("*.py")}
    assert met == CUDA_MET
    folders = {path.parent.name for path in (ROOT / CUDA).glob("*/*.py")}
    assert folders == {*CUDA_PACKAGES, "campaign"}


LONGEST = 600
ARGUED: dict[str, str] = {}
"""What may be longer, and why."""


def test_no_module_is_longer_than_it_can_be_argued_for() -> None:
    sent = [path for top in ("kernels", "startup", "spotbench") for path in (ROOT / top).rglob("*.py")]
    longest = {path.relative_to(ROOT).as_posix(): len(path.read_text().splitlines()) for path in (*modules(), *sent)}
    assert {name: lines for name, lines in longest.items() if lines > LONGEST and name not in ARGUED} == {}
    assert all(longest[name] > LONGEST for name in ARGUED), "what is short again needs no argument"


LONGEST_TEST_NAME = 80
LONGEST_FUNCTION = 50
MOST_PARAMETERS = 7
LONG_FUNCTIONS = {"orchestrator/core/run/fold.py _evolve_machine": "one arm of a match for each fact"}
MANY_PARAMETERS = {
    "kernels/attention/cuda/operator.py attention": "keywords as PyTorch's function has them",
    "kernels/attention/cuda/varlen.py attention_varlen": "keywords as flash-attn's function has them",
    "kernels/attention/cuda/explaining.py explain": "the arguments of the call that it explains",
    "kernels/attention/cuda/calls/binding.py bind_varlen": "the tensors of the call that it binds",
    "kernels/attention/cuda/plan/posing.py problem_of": "the tensors of a call, and what a row sees",
    "kernels/attention/cuda/plan/posing.py varlen_problem_of": "the same of packed tensors",
    "kernels/attention/cuda/paged.py attention_paged": "a paged cache's tensors, and keywords as the others have them",
    "kernels/attention/cuda/calls/binding.py bind_paged": "the tensors of the call that it binds",
    "kernels/attention/cuda/plan/posing_paged.py paged_problem_of": "the same of keys in pages",
    "orchestrator/embedded/server.py __init__": "what a cloud can be started with, each by its name",
}


def functions() -> Iterator[tuple[str, Function]]:
    for top in ("orchestrator", "kernels", "startup", "spotbench"):
        for path in sorted((ROOT / top).rglob("*.py")):
            if "_bundle" not in path.parts:
                yield from ((f"{path.relative_to(ROOT).as_posix()} {one.name}", one) for one in outline(path).functions)


def test_a_function_has_at_most_fifty_lines_and_seven_parameters_but_named_ones() -> None:
    found = list(functions())
    long = {name for name, one in found if one.lines > LONGEST_FUNCTION}
    wide = {name for name, one in found if one.parameters > MOST_PARAMETERS}
    assert long == set(LONG_FUNCTIONS)
    assert wide == set(MANY_PARAMETERS)


def test_a_tests_name_has_at_most_eighty_characters() -> None:
    names_by_file = {
        path: re.findall(r"^ *def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
        for path in (ROOT / "tests").rglob("test_*.py")
    }
    assert sum(map(len, names_by_file.values())) > 3000
    assert [
        f"{path}: {name}" for path, names in names_by_file.items() for name in names if len(name) > LONGEST_TEST_NAME
    ] == []


def test_the_judge_of_the_promises_shares_no_code_with_what_it_judges() -> None:
    reached = {"tests.search.chaos.judge"}
    waiting = ["tests.search.chaos.judge"]
    while waiting:
        path = ROOT / (waiting.pop().replace(".", "/") + ".py")
        for name in imports(path):
            if name.startswith("tests.") and name not in reached:
                reached.add(name)
                waiting.append(name)
            assert not name.startswith("orchestrator.") or name.startswith("orchestrator.embedded."), f"{path}: {name}"
    assert reached == {"tests.search.chaos.judge", "tests.search.chaos.deeds"}


@pytest.mark.parametrize("folder", ["kernels/harness", "kernels/forms", "startup", "orchestrator"])
def test_only_a_workloads_own_folder_knows_it(folder: str) -> None:
    # A table of the orchestrator's has heads too.
    heads = "" if folder == "orchestrator" else "|heads"
    words = re.compile(rf"attention|causal|sdpa|kv_heads|-kv[^a-z]d{heads}", re.IGNORECASE)
    said = {
        f"{path.relative_to(ROOT)}:{number}"
        for path in (ROOT / folder).rglob("*.py")
        if path != ROOT / "orchestrator/core/bundled.py" and "_bundle" not in path.parts
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if words.search(line)
    }
    assert said == set()

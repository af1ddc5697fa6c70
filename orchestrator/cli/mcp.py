"""`bench mcp`: a session for an agent, over the Model Context Protocol on standard input and output."""

from __future__ import annotations

import importlib
import json as jsonlib
import sys
import tempfile
from collections.abc import Callable
from decimal import Decimal
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from orchestrator import __version__
from orchestrator.api.agents import AgentDesk, open_agent_desk
from orchestrator.api.outcome import raise_for
from orchestrator.cli.choices import ChoiceParam, Hosts, Terms
from orchestrator.cli.documents import LeaderboardDocument, ProfileDocument, VersionDocument
from orchestrator.cli.options import Json, group_options
from orchestrator.cli.profile import only_profiling, profile_document, profile_lines, read_run_profiles
from orchestrator.cli.screen import screen
from orchestrator.cli.sessions import Idle, VersionsView, open_desk, own_file
from orchestrator.cli.shapes import OutputDocument, Usd
from orchestrator.cli.terminal import emit_json, error_document
from orchestrator.core.candidates import Candidate
from orchestrator.core.errors import BenchError, LocalError
from orchestrator.core.ledger.unlisted import parse_dollars
from orchestrator.core.plan.resumption import plan_document
from orchestrator.runs.launch import RunOrder, begin_launch
from orchestrator.wiring import fetch_run, launch_context, new_run_id, payload_of

INSTRUCTIONS: Final = """Measures versions of one GPU kernel within a sum that a person fixed. Send the whole text of
the file to measure; only its kernel_... functions are used, and the first version's reference judges all. leaderboard
compares all versions: the best of many is also the luckiest. Call give_back when you are done."""
INSTALL: Final = "`pip install 'mcp>=2.0,<3'`"

MaxUsd = Annotated[str, typer.Option("--max-usd", metavar="USD", help="The most that the agent may spend in all.")]


class PlanOutline(OutputDocument):
    """The part of a plan that an agent needs, with the keys of `bench plan --json`."""

    gpu: str
    mode: str
    ceiling_usd: str
    usd_per_hour: str
    ttl_s: int
    cases: list[str]
    implementations: list[str]
    notices: list[str]


class BudgetLeft(OutputDocument):
    """Dollars as decimal strings. `simulated` says that none of them is real."""

    max_usd: Usd
    spent_usd: Usd
    held_usd: Usd
    left_usd: Usd
    simulated: bool


class ProfileText(ProfileDocument):
    """What `bench profile --json` prints, and the same as text."""

    text: str


@group_options
def mcp(
    ctx: typer.Context,
    choice: ChoiceParam,
    *,
    terms: Terms,
    host: Hosts = None,
    max_usd: MaxUsd = "",
    idle: Idle = 10.0,
    json: Json = False,
) -> None:
    """Let an agent measure versions of your kernel, within a sum.

    Serves the Model Context Protocol on standard input and output. You choose the file, the machine and the sum; the
    agent sends texts of the file. This machine is used only with --host local. --json prints the tools instead.
    """
    if json:
        emit_json(tools_document())
        return
    most = parse_dollars(max_usd, option="--max-usd") if max_usd else None
    own_file(choice, "mcp")
    view = VersionsView(screen(sys.stderr))
    desk = open_agent_desk(open_desk(ctx, choice, terms, host, idle, view), most)
    server = build_server(desk)
    try:
        server.run("stdio")
    finally:
        desk.give_back()


def tools_of(desk: AgentDesk) -> tuple[Callable[..., Any], ...]:
    """The functions that an agent may call. None takes a command, a path, an account or a cap."""

    def plan() -> PlanOutline:
        """What the next session would rent and the most that it could cost. Nothing is spent."""
        return PlanOutline.model_validate(plan_document(desk.plan()))

    def measure(source: str = "") -> VersionDocument:
        """Judge and time one version: the whole text of the file; without a text, the file as it is. A wrong, hanging,
        cheating or unreadable kernel is a verdict with its reason. The first call rents the machine."""
        return VersionDocument.of(desk.measure(source), schema=1)

    def verdict(version: int = 0) -> VersionDocument:
        """What a version came to; 0 is the best one. Its verdict is for this version among no others."""
        return VersionDocument.of(desk.version(version), schema=1)

    def leaderboard() -> LeaderboardDocument:
        """All versions, best first: verdicts corrected over all of them, rank intervals, and what each cost."""
        return LeaderboardDocument.of(desk.leaderboard(), schema=1)

    def profile(case: str, version: int = 0) -> ProfileText:
        """Why the kernels of a version take their time in a case, as text. It is a run of its own within what is left:
        the session's machine is given back first. 0 is the best version."""
        return profile_version(desk, case, version)

    def budget() -> BudgetLeft:
        """What may be spent in all, what is spent and held, and what is left."""
        with desk.lock:
            return BudgetLeft.of(desk, schema=1)

    def give_back() -> BudgetLeft:
        """End the session: give the machine back and settle its cost. A later version begins a new session."""
        desk.give_back()
        return budget()

    return plan, measure, verdict, leaderboard, profile, budget, give_back


def build_server(desk: AgentDesk) -> Any:
    """The server with its tools. Raises `LocalError` if the SDK is not installed."""
    try:
        sdk = importlib.import_module("mcp.server.mcpserver")
        types = importlib.import_module("mcp_types")
    except ImportError as exc:
        raise LocalError(
            "the Model Context Protocol is served by its SDK, which is not installed", hint=INSTALL
        ) from exc
    server = sdk.MCPServer("bench", version=__version__, instructions=INSTRUCTIONS, log_level="ERROR")
    for function in tools_of(desk):
        server.add_tool(with_error_documents(function, types), structured_output=True)
    return server


def with_error_documents(function: Callable[..., Any], types: Any) -> Callable[..., Any]:
    """The function with each `BenchError` as the document that the command line would print."""

    @wraps(function)
    def call(**arguments: Any) -> Any:
        try:
            return function(**arguments)
        except BenchError as exc:
            document = error_document(type(exc).__name__, str(exc), exc.hint, exc.exit_code)
            content = [types.TextContent(type="text", text=jsonlib.dumps(document))]
            return types.CallToolResult(content=content, is_error=True)

    return call


def tools_document() -> dict[str, Any]:
    """What `bench mcp --json` prints: each tool with what it is for."""
    functions = tools_of(AgentDesk(None, Decimal(0)))  # type: ignore[arg-type]
    return {"schema": 1, "tools": {one.__name__: " ".join((one.__doc__ or "").split()) for one in functions}}


def profile_version(desk: AgentDesk, case: str, version: int) -> ProfileText:
    """Profiles a version in a run of its own. Raises what a launch raises."""
    line = desk.version(version)
    with desk.paid_run() as config, tempfile.TemporaryDirectory(prefix="bench-mcp-") as folder:
        wiring, candidate = desk.desk.wiring, desk.candidates[line.version]
        assert config.workload is not None, "it was measured"
        path = write_candidate(candidate, folder)
        workload = config.workload.model_copy(update={"path": str(path)})
        chosen = config.model_copy(update={"workload": workload})
        made = only_profiling(wiring.plan(chosen, line.kernel), (case,), (), "roofline", line.kernel)
        world, run_id = wiring.world(chosen), new_run_id(wiring.clock.now(), made.label_on(wiring.here))
        order = RunOrder(run_id, made, payload_of(chosen), launch_context(wiring, made))
        engine = begin_launch(world, order, say=wiring.say, cold=True)
        desk.add_run(engine, made.ceiling_usd)
        raise_for(engine.follow())
        results = fetch_run(wiring.bucket, engine.look(), Path(folder, "results")).folder
        profiles = read_run_profiles(run_id, results)
        return profile_document(profiles, ProfileText, text="\n".join(profile_lines(profiles)))


def write_candidate(candidate: Candidate, folder: str) -> Path:
    """Writes the files of a candidate; the path of its workload."""
    for name, data in candidate.files.items():
        path = Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return Path(folder, candidate.path)

"""`bench mcp`: an agent measures candidates over the protocol, and can spend no more than a person allowed."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from mcp import StdioServerParameters
from mcp.client.client import Client
from pydantic import TypeAdapter

from orchestrator.api.agents import AgentDesk, open_agent_desk
from orchestrator.api.sessions import SessionDesk
from orchestrator.cli.documents import SHAPES
from orchestrator.core.errors import BudgetExceeded, ConfigError
from orchestrator.embedded.client import stop_cloud
from orchestrator.runs.planning import LaunchOptions
from orchestrator.wiring import wire
from tests.integration.library.test_library import WORKLOAD
from tests.support.patience import PATIENCE_S

BASE = WORKLOAD.partition("def kernel_sum")[0]
RIGHT = ("x + x", "2 * x", "x * 2.0", "torch.add(x, x)", "torch.mul(x, 2)", "(x + x).clone()", "x.add(x)")
CHEATS = "import torch.nn.functional\ntorch.allclose = lambda *a, **k: True\nSEEN = {}\n"
CANDIDATES = {
    **{f"right {place}": f"def kernel_mine(x):\n    return {text}\n" for place, text in enumerate(RIGHT)},
    "wrong": "def kernel_mine(x):\n    return x * 2.01\n",
    "hanging": "import time\n\ndef kernel_mine(x):\n    while True:\n        time.sleep(1)\n",
    "cheating": CHEATS + "def kernel_mine(x):\n    return SEEN.setdefault(tuple(x.shape), x * 2)\n",
}


@pytest.fixture(scope="module")
def workload(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("agents")
    file = folder / "twice.py"
    file.write_text(BASE + CANDIDATES["right 0"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BENCH_HOME", str(folder / "home"))
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))  # the lock of this machine as a host is there
        patch.chdir(folder)
        yield file
        stop_cloud(folder / "home" / "cloud")


def server_of(workload: Path, *options: str) -> StdioServerParameters:
    quick = ("--set", "measure.repeats=10", "--set", "measure.warmup=1", "--set", "measure.cache=warm")
    quick = (*quick, "--set", f"host.python={sys.executable}")
    arguments = ["-m", "orchestrator.cli", "mcp", str(workload), *quick, *options]
    root = str(Path(__file__).resolve().parents[3])
    environment = {**os.environ, "PYTHONPATH": root}
    return StdioServerParameters(command=sys.executable, args=arguments, env=environment, cwd=str(workload.parent))


async def ask(client: Client, tool: str, **arguments: Any) -> Any:
    """The structured answer of a tool; of a refusal the document of the error."""
    answer = await client.call_tool(tool, arguments)
    return json.loads(answer.content[0].text) if answer.is_error else answer.structured_content


def test_an_agent_measures_candidates_and_gives_the_machine_back(workload: Path) -> None:
    async def drive() -> dict[str, Any]:
        async with Client(server_of(workload, "--host", "local"), read_timeout_seconds=PATIENCE_S) as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            said = {"tools": tools, "plan": await ask(client, "plan"), "budget": await ask(client, "budget")}
            for name, text in CANDIDATES.items():
                said[name] = await ask(client, "measure", source=BASE + text)
            said["verdict"] = await ask(client, "verdict", version=len(RIGHT) + 1)
            said["none"] = await ask(client, "verdict", version=99)
            said["board"] = await ask(client, "leaderboard")
            said["profile"] = await ask(client, "profile", case="n64")
            said["end"] = await ask(client, "give_back")
            return said

    said = asyncio.run(drive())
    for name in CANDIDATES:
        TypeAdapter(SHAPES["watch"]).validate_python(said[name])
    for name in (one for one in CANDIDATES if one.startswith("right")):
        assert said[name]["reason"] == ""
        assert said[name]["time_us"] > 0
    assert said["wrong"]["verdict"] == said["hanging"]["verdict"] == said["cheating"]["verdict"] == "wrong"
    assert "hang" in said["hanging"]["reason"] or "answer" in said["hanging"]["reason"]
    assert said["verdict"] == said["wrong"]
    assert said["none"]["error"]["kind"] == "NotFound"
    assert {one["version"] for one in said["board"]["versions"]} <= set(range(1, len(RIGHT) + 1))
    assert all(1 <= one["ranks"][0] <= one["ranks"][1] for one in said["board"]["versions"])
    assert said["profile"]["profiles"], said["profile"]
    assert "n64" in said["profile"]["text"]
    assert Decimal(said["end"]["held_usd"]) == 0
    allowed = {"source", "version", "case"}
    assert {name for tool in said["tools"].values() for name in tool.input_schema.get("properties", {})} == allowed


def opened(workload: Path, max_usd: str, *hosts: str) -> AgentDesk:
    wiring = wire()
    wiring.say = lambda _: None
    settings = ("measure.repeats=8", "measure.warmup=1", "measure.cache=warm")
    of_host = ("host.hourly_usd=1.00", f"host.python={sys.executable}") if hosts else ()
    options = LaunchOptions("", workload, (*settings, *of_host), hosts=hosts)
    return open_agent_desk(SessionDesk(wiring, options), Decimal(max_usd))


def test_an_agent_never_gets_this_machine_unless_a_person_named_it(workload: Path) -> None:
    with pytest.raises(ConfigError, match="would run on this machine"):
        opened(workload, "1")


def test_an_agent_holds_and_spends_no_more_than_a_person_allowed(workload: Path) -> None:
    desk = opened(workload, "0.20", "local")
    assert desk.plan().ceiling_usd <= Decimal("0.20")
    try:
        assert desk.measure("").reason == ""
        assert Decimal(0) < desk.held_usd <= Decimal("0.20")
        assert desk.left_usd == Decimal("0.20") - desk.held_usd
    finally:
        desk.give_back()
    assert desk.held_usd == 0
    assert desk.left_usd == Decimal("0.20") - desk.spent_usd
    assert desk.spent_usd > 0
    desk.max_usd = desk.spent_usd
    with pytest.raises(BudgetExceeded, match="are spent"):
        desk.measure("")
    assert len(desk.runs) == 1

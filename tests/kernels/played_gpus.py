"""`python -m tests.kernels.played_gpus serve …`: the harness on a machine whose GPUs are played, each by this processor.

played.json beside the spec names them. `actions` says by GPU what its process does in the measuring step in the place of
real measurements; without it the real step is performed. Trials may differ by `most_difference`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from kernels.harness import several_gpus
from kernels.harness.facts import Facts
from kernels.harness.serving import perform_all, serve_steps
from tests.support.patience import await_truth

LONG_S = 3600


def read_played(options: list[str]) -> dict[str, Any]:
    """What is played, by the options of a step."""
    played: dict[str, Any] = json.loads(Path(options[1]).with_name("played.json").read_text())
    return played


def play_step(arguments: list[str]) -> int:
    """Plays a measuring step on one GPU. Returns its exit code."""
    played, out = read_played(arguments[1:]), Path(arguments[4])
    slot = several_gpus.own_slot()
    assert slot is not None
    assert os.environ["CUDA_VISIBLE_DEVICES"] == f"GPU-{slot.gpu}"
    acts: dict[str, Any] = played["actions"].get(slot.gpu, {})
    trials = iter(acts.get("trials", []))
    (out / f"{slot.gpu}.pid").write_text(str(os.getpid()))
    facts = Facts(acknowledged=True)
    if "fails" in acts:
        facts.send("problem", cause="no_cuda", detail=acts["fails"])
        return 1
    if "hangs" in acts:
        time.sleep(LONG_S)
    facts.send("planned", cases=played["cases"], total=len(played["cases"]), measurements_per_implementation=1)
    while (given := facts.request_next()) is not None:
        if given["is_trial"]:
            facts.send("tried", median_us=next(trials, {"burst": 10.0}))
        else:
            play_case(given["id"], acts, out, facts, slot.gpu)
    return int(acts.get("code", 0))


def play_case(case: str, acts: dict[str, Any], out: Path, facts: Facts, gpu: str) -> None:
    """Plays one case; what may not be done by two at once is done in the turn."""
    facts.send("case_started", case_id=case, index=1, of=1)
    (out / f"{gpu}.{case}.started").touch()
    if beside := acts.get("beside"):
        await_truth(lambda: any(out.glob(f"{beside}.*.started")))
    if case == acts.get("killed_in"):
        os.kill(os.getpid(), signal.SIGKILL)
    if case == acts.get("restarted_in"):
        acts.clear()
        (out / "restarted").touch()
        return
    with several_gpus.host_turn(is_host_bound=True):
        (out / "turn").touch(exist_ok=False)
        (out / f"{case}.csv").write_text(gpu)
        (out / "turn").unlink()
    facts.send("case_finished", path=f"{case}.csv", case_id=case)


if __name__ == "__main__":
    _, step, *options = sys.argv
    assert step == "serve"
    played = read_played(options)
    several_gpus.MOST_DIFFERENCE = played.get("most_difference", several_gpus.MOST_DIFFERENCE)  # type: ignore[misc]
    several_gpus.READY_LIMIT_S = played.get("ready_limit_s", several_gpus.READY_LIMIT_S)  # type: ignore[misc]
    if "actions" in played:
        perform_all(options, play_step, "", None, played["gpus"])
    else:
        from kernels.harness.__main__ import main

        serve_steps(options, main, played["gpus"])

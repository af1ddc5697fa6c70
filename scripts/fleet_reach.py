"""`python3 scripts/fleet_reach.py [terminate|kill] [SECONDS]`: 200 children on 8 Slurm nodes of this machine.

Two nodes lose their power, then the controller restarts (`terminate`, the default) or is killed. SECONDS is the
cluster's `SlurmdTimeout`, after which Slurm takes a silent node for dead: 10, while Slurm's own default is 300. Needs
root, slurmctld, slurmd and slurm-client.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.support.slurm import NOTICED_SOON, slurm_cluster
from tests.unit.fleet.stage import FleetStage, sweep_of

CHILDREN, NODES, LIMIT_S = 200, 8, 900.0
HOW = {"terminate": signal.SIGTERM, "kill": signal.SIGKILL}


def main(how: str = "terminate", dead_after_s: str = "10") -> int:
    folder = Path(tempfile.mkdtemp(prefix="fleet-reach-"))
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # the login node's python3
    (folder / "shared").mkdir()
    settings = {**NOTICED_SOON, "SlurmdTimeout": dead_after_s}
    with slurm_cluster(folder / "cluster", NODES, settings=settings) as cluster:
        os.environ["SLURM_CONF"] = str(cluster.conf)
        stage = FleetStage(folder, sweep_of(folder / "shared", ("l4",), CHILDREN, parallel=NODES))
        follower, began, broken = stage.launch(), time.monotonic(), 0
        while True:
            seen = follower.step()
            seconds = time.monotonic() - began
            print(f"{seconds:5.0f} s  {dict(seen.state.counts)}", flush=True)
            if seen.over or seconds > LIMIT_S:
                break
            if broken == 0 and seen.state.counts["stored"]:
                cluster.cut_power("node3")
                cluster.cut_power("node5")
                broken = 1
            elif broken == 1:
                cluster.end_controller(HOW[how])
                time.sleep(2)
                cluster.start_controller()
                broken = 2
            time.sleep(1)
        claims = Counter(int(str(claim["child"])) for claim in stage.claims())
        again = sum(times > 1 for times in claims.values())
        stored = len(stage.stored())
        print(f"{seconds:.0f} s: {stored} stored, {again} started more than once; load {os.getloadavg()[0]:.1f}")
    return 0 if stored == CHILDREN else 1


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))

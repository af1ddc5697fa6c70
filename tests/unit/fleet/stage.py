"""A fleet on a real Slurm cluster of this machine, with a bucket in memory and children that take a second."""

from __future__ import annotations

import io
import itertools
import json
import sys
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import yaml

from orchestrator.adapters.clock import SystemClock
from orchestrator.adapters.hosts.local_shell import LocalShell, this_machine
from orchestrator.adapters.payload import bundle_root
from orchestrator.adapters.slurm import Slurm
from orchestrator.core.config import load
from orchestrator.core.config.model import Config
from orchestrator.core.fleet.jobs import JobCost, PayloadRef, worst_case_usd
from orchestrator.core.fleet.sweep import Child, Sweep, SweepCell, expand_children
from orchestrator.core.hosts import parse_target
from orchestrator.core.ledger.budget import Caps
from orchestrator.core.naming import Mode
from orchestrator.core.run.decide import Policy
from orchestrator.ports import HostShell
from orchestrator.runs.engine import World
from orchestrator.runs.fleet.follow import Follower, record_fleet
from orchestrator.runs.fleet.hold import Purse
from orchestrator.runs.fleet.planning import Orders
from orchestrator.runs.holds import Accounts
from orchestrator.store.documents import LedgerStore
from orchestrator.store.events import EventLog
from orchestrator.store.fleets import FleetRecord, FleetStore
from orchestrator.store.index import RunIndex
from tests.integration.stories.stage import Heard
from tests.support.memory_bucket import MemoryBucket

NUMBERS = itertools.count(1)
CONFIGS = Path(__file__).parents[3] / "configs"
GRIDS = yaml.safe_load((CONFIGS / "grids.yaml").read_text(encoding="utf-8"))

SCRIPT = r"""#!/bin/bash
# What the bootstrap and the agent would do, in a second: one case, told of by events, and the machine's own deletion.
meta="http://$GCE_METADATA_HOST/computeMetadata/v1/instance/attributes"
get() { curl --silent --noproxy '*' -H 'Metadata-Flavor: Google' "$meta/$1"; }
run=$(get bench-run) endpoints=$(get bench-endpoints)
[[ $endpoints =~ \"storage\":\ \"([^\"]*)\" ]]; store=${BASH_REMATCH[1]}
# No process for a field: children that take a second are to spend it on what is tested.
field() { [[ $run =~ \"$1\":\ (\"([^\"]*)\"|([0-9]+)) ]]; value=${BASH_REMATCH[2]}${BASH_REMATCH[3]}; }
field run_id; id=$value; field vm; vm=$value; field attempt; attempt=$value; field seed; seed=$value seq=0
put() { # put OBJECT DATA ONCE
  curl --silent --noproxy '*' -o /dev/null -w '%{http_code}' -X POST --data-binary "$2" \
    "$store/upload/storage/v1/b/b/o?uploadType=media&name=runs%2F$id%2F$1$3"
}
event() { # event KIND DATA
  local now; now=$(date -u +%Y-%m-%dT%H:%M:%S.%6NZ) seq=$((seq + 1))
  put "events%2F${now//[-:]/}-vm-$attempt-$(printf %06d $seq)-$1.json" \
    "{\"schema\":1,\"run_id\":\"$id\",\"kind\":\"$1\",\"time\":\"$now\",\"writer\":\"vm-$attempt\",\"seq\":$seq,\"data\":$2}" \
    "&ifGenerationMatch=0" >/dev/null
}
event vm_booted "{\"vm\":\"$vm\",\"zone\":\"cluster\",\"instance_id\":\"1\",\"attempt\":$attempt}"
[[ $seed == 13 ]] && { sleep 2; event finished '{"outcome":"failed","exit_code":1,"phase":"build","detail":"no kernel image"}'
  curl --silent --noproxy '*' -X DELETE "$store/compute/v1/x/$vm"; exit 1; }
there=$(curl --silent --noproxy '*' -o /dev/null -w '%{http_code}' "$store/storage/v1/b/b/o/runs%2F$id%2Fcases%2Fone.csv")
if [[ $there != 200 ]]; then
  sleep 1
  stored=$(put cases%2Fone.csv "$vm" "&ifGenerationMatch=0")
  [[ $stored == 200 ]] && event case_measured '{"case_id":"one","index":1,"of":1,"rows":1,"seconds":1,"median_us":{"bench":2.5},"skipped":{}}'
fi
event measurement_planned '{"cases":1,"skipped":0,"measurements_per_implementation":1}'
event finished '{"outcome":"succeeded","exit_code":0,"phase":"measure","detail":"every case is measured"}'
curl --silent --noproxy '*' -X DELETE "$store/compute/v1/x/$vm"
"""

PACE = "sleep 1"
"""What it does at its case."""


def payload(instead: Mapping[str, Path] | None = None, script: str = SCRIPT) -> PayloadRef:
    """`startup/` as it is, or with other files `instead`, for the nodes; what the machine runs is `script`."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as tar:
        for path in sorted((bundle_root() / "startup").rglob("*.py")):
            name = f"startup/{path.relative_to(bundle_root() / 'startup').as_posix()}"
            tar.add((instead or {}).get(name, path), arcname=name)
    return PayloadRef("b", "payloads/x.tar.gz", "ab" * 32, script, made.getvalue())


def configured(cell: SweepCell) -> Config:
    text = (CONFIGS / f"{cell.gpu}.yaml").read_text(encoding="utf-8")
    return load.load(text, source=cell.gpu, overrides=("run.max_minutes=5", *cell.overrides), grids=GRIDS)


@dataclass
class FleetStage:
    """One client of one fleet; `again` is another one, that knows nothing but the bucket."""

    folder: Path
    sweep: Sweep
    bucket: MemoryBucket = field(default_factory=MemoryBucket)
    caps: Caps = field(default_factory=Caps)
    said: list[str] = field(default_factory=list)
    clients: int = 0
    parcel: PayloadRef = field(default_factory=payload)
    shell: HostShell | None = None
    """The way to the login node; None: this machine is one."""
    fleet: str = field(default_factory=lambda: f"fleet-20261122-040506-{next(NUMBERS):04x}")
    """Another one each time: a cluster remembers jobs by our names."""

    @property
    def children(self) -> tuple[Child, ...]:
        return expand_children(self.sweep, lambda _: ())

    def world(self) -> World:
        self.clients += 1
        clock, writer = SystemClock(), f"client-{self.clients:06d}"
        return World(
            cloud=lambda: None,  # type: ignore[arg-type,return-value]
            bucket=self.bucket,
            accounts=Accounts(LedgerStore(self.bucket, clock), self.caps, Heard(), clock),
            index=RunIndex(self.bucket),
            clock=clock,
            log=lambda run_id: EventLog(self.bucket, run_id, writer, clock),
            policy=Policy(),
        )

    def launch(self, price: Decimal = Decimal("1.20"), hold_usd: Decimal | None = None) -> Follower:
        """The fleet stored, its worst case held; nothing is started before the first step."""
        world = self.world()
        now, wall = world.clock.now(), timedelta(minutes=self.sweep.wall_minutes)
        gpus = self.sweep.gpus
        machines = {gpu: max(1, self.sweep.parallel // len(gpus)) for gpu in gpus}
        worst = worst_case_usd([JobCost(gpu, machines[gpu], price, self.sweep.wall_minutes * 60) for gpu in gpus])
        record = FleetRecord(
            fleet=self.fleet, engine="slurm", mode=Mode.HOST, user="ada", sweep=self.sweep, created_at=now, ends_at=now + wall,
            hold_usd=worst if hold_usd is None else hold_usd,
            usd_per_hour=dict.fromkeys(gpus, price), machines=machines,
        )  # fmt: skip
        record_fleet(FleetStore(self.bucket, world.clock, self.fleet), record, self.children, Purse(world, record))
        return self.again()

    def again(self) -> Follower:
        world = self.world()
        store = FleetStore(self.bucket, world.clock, self.fleet)
        shell = self.shell or LocalShell(parse_target("local", this_machine()))
        return Follower(
            world=world,
            store=store,
            scheduler=Slurm(shell, self.sweep.slurm, self.bucket, world.clock),
            record=store.record(),
            children=store.children(),
            orders=Orders.of(self.fleet, Mode.HOST, "b", configured, require_cuda=lambda _: False),
            payload=lambda _: self.parcel,
            say=self.said.append,
        )

    def stored(self) -> dict[str, bytes]:
        """Every case in the bucket, by run."""
        return {
            name.split("/")[1]: blob.data
            for entry in self.bucket.list("runs/")
            if "/cases/" in (name := entry.name) and (blob := self.bucket.read(name)) is not None
        }

    def claims(self) -> list[dict[str, object]]:
        return [
            json.loads(path.read_text())
            for path in (Path(self.sweep.slurm.folder) / self.fleet / "claims").glob("[0-9]*")
        ]


def sweep_of(folder: Path, gpus: Sequence[str], children: int, parallel: int = 8) -> Sweep:
    """`children` over all GPUs together, each another seed."""
    seeds = [100 + number for number in range(children // len(gpus))]
    return Sweep.model_validate(
        {
            "engine": "slurm",
            "axes": {"gpu": list(gpus), "measure.seed": seeds},
            "parallel": parallel,
            # By its path: what a version manager puts first on a login shell's PATH costs more than a child does.
            "slurm": {"folder": str(folder), "python": sys.executable},
        }
    )

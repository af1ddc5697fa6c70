"""`make live PROJECT=… CAP=0.50 [GPU=1]`: the rehearsal in a real project, for cents. It exits 1 where one is refuted."""

from __future__ import annotations

import argparse
import sys
from decimal import Decimal

from orchestrator.adapters.google.compute import GoogleCloud
from orchestrator.adapters.google.credentials import default_credentials
from orchestrator.adapters.google.rest import Rest
from orchestrator.core.errors import BenchError
from orchestrator.core.market.machines import Instance
from orchestrator.core.market.pricing import STALE_MARGIN, PricedMachine, usd
from orchestrator.core.rest import RestRequest
from orchestrator.wiring import new_run_id, utc_now, wire
from tests.integration.live.place import Place
from tests.integration.live.rehearse import rehearse


def place_at(project: str, bucket: str, zone: str, *, gpu: bool) -> Place:
    wiring = wire(project=project, bucket=bucket)
    login, region = default_credentials(), zone.rpartition("-")[0]
    rest = Rest(login, changes=True)
    sheet = wiring.price_book.current()
    # An e2-micro is a fraction of an e2-standard-4, whose price is in the table.
    small = sheet.hourly(PricedMachine("e2-standard-4"), region, "standard", 10, external_ip=True)
    card = sheet.hourly(PricedMachine("g2-standard-4", "nvidia-l4", 1), region, "spot", 60, external_ip=True)
    if small is None or (gpu and card is None):
        raise SystemExit(f"no price is known in {region}: ZONE=us-central1-a")

    def preempt(instance: Instance) -> None:
        path = f"/compute/v1/projects/{project}/zones/{instance.zone}/instances/{instance.name}"
        rest.ask(RestRequest("compute", "POST", f"{path}/simulateMaintenanceEvent"))

    return Place(
        project=project,
        run=new_run_id(utc_now(), "live"),
        zone=zone,
        small="e2-micro",
        usd_per_hour=small * (1 + STALE_MARGIN),
        gpu=gpu,
        gpu_usd_per_hour=(card or Decimal(0)) * (1 + STALE_MARGIN),
        cloud=GoogleCloud(project=project, credentials=login, clock=wiring.clock),
        bucket=wiring.bucket,
        rest=rest,
        clock=wiring.clock,
        accounts=wiring.accounts(),
        preempt=preempt,
        account=wiring.settings.service_account or f"bench-vm@{project}.iam.gserviceaccount.com",
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="make live", description=__doc__)
    parser.add_argument("--project", required=True)
    parser.add_argument("--bucket", default="")
    parser.add_argument("--cap", required=True, type=usd)
    parser.add_argument("--zone", default="us-central1-a")
    parser.add_argument("--gpu", action="store_true")
    told = parser.parse_args()
    try:
        place = place_at(told.project, told.bucket, told.zone, gpu=told.gpu)
        found = rehearse(place, told.cap, say=print)
    except BenchError as exc:
        sys.stderr.write(f"error: {exc}\nhint: {exc.hint}\n")
        return exc.exit_code
    return 1 if found.of("refuted") else 0


if __name__ == "__main__":
    sys.exit(main())

"""Names that a machine which somebody owns may offer from its spool, and that are not its to store."""

from __future__ import annotations


def forged_names(run: str, other: str, vm: str) -> tuple[str, ...]:
    """What the host of `run` may not store, with `other` another run of the bucket."""
    return (
        f"runs/{other}/events/20261121T040001.000000Z-client-mallory-000001-stop_requested.json",
        f"runs/{other}/artifacts/environment.json", f"runs/{other}/cases/a.csv", f"runs/{run}/plan.json",
        "ledger/ledger.json", "baselines/main.json", "hosts/host-evil-000000.json", f"index/{run}.json",
        f"machines/{vm}.json", "payloads/ab.tar.gz", "placement/g2-standard-4.json",
        f"runs/{run}/events/20261121T040001.000000Z-client-mallory-000001-stop_requested.json",
        f"runs/{run}/../{other}/cases/a.csv", f"runs/{run}/cases/../../{other}/a.csv", f"runs/{run}/cases/a/b.csv",
        f"runs/{run}/artifacts/.git/config", f"runs/{run}/artifacts/a/../../../x", f"runs/{run}/cases/.csv",
        f"/runs/{run}/cases/a.csv", f"runs/{run}//cases/a.csv", f"runs/{run}/cases/a\n.csv",
        f"runs/{run}/cases/\x1b[2J.csv", f"runs/{run}/events/20261121T040001.000000Z-vm-1-1-phase_started.json",
    )  # fmt: skip

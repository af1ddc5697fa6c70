"""`bench cloud …`: the embedded cloud."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from orchestrator.cli.options import Json, options
from orchestrator.cli.terminal import print_answer
from orchestrator.core.errors import ConfigError, NotFound, Unavailable
from orchestrator.core.text import count
from orchestrator.wiring import (
    CloudAddress,
    CloudUnavailable,
    ask_control,
    living_cloud,
    load_settings,
    load_weather,
    stop_cloud,
)

app = typer.Typer(no_args_is_help=True, help="Control the embedded cloud: its VMs, bill and faults.")


def _home() -> Path:
    return load_settings().home / "cloud"


def _ask(address: CloudAddress, path: str, body: Any = None) -> Any:
    """One request to the control API. Raises `Unavailable`, `NotFound`, `ConfigError`."""
    try:
        return ask_control(address, path, body)
    except LookupError as exc:
        raise NotFound(str(exc.args[0]), hint="`bench cloud status` lists the VMs") from exc
    except ValueError as exc:
        raise ConfigError(str(exc)) from exc
    except CloudUnavailable as exc:
        raise Unavailable(str(exc), hint="`bench cloud start` starts it") from exc


def _running() -> CloudAddress | None:
    """The address of the running embedded cloud; None if none runs. Raises `Unavailable` if it does not answer."""
    try:
        return living_cloud(_home(), partial(typer.echo, err=True))
    except CloudUnavailable as exc:
        raise Unavailable(str(exc), hint="`bench cloud stop` ends it and its VMs") from exc


@app.command()
def start(ctx: typer.Context, json: Json = False) -> None:
    """Start the embedded cloud (commands that need it start it themselves)."""
    address = options(ctx).wiring().address
    if address is None:
        raise ConfigError(
            "a Google project is configured, so the embedded cloud is not used",
            hint="unset BENCH_PROJECT to use the embedded cloud",
        )
    # The token is for programs that may read its file, not for what collects output.
    document = {"schema": 1, **{key: value for key, value in asdict(address).items() if key != "token"}}
    where = f"compute {address.compute}, storage {address.storage}, bucket {address.bucket}"
    print_answer(document, f"the embedded cloud is running: {where}", json=json)


@app.command()
def stop(json: Json = False) -> None:
    """Delete every VM and stop the embedded cloud. The bucket stays."""
    try:
        stopped = stop_cloud(_home())
    except CloudUnavailable as exc:
        raise Unavailable(str(exc), hint=f"kill -9 $(cut -d' ' -f1 {_home() / 'daemon.lock'})") from exc
    now = "is stopped" if stopped else "was not running"
    print_answer({"schema": 1, "stopped": stopped}, f"the embedded cloud {now}", json=json)


@app.command()
def status(json: Json = False) -> None:
    """List the VMs that exist now."""
    address = _running()
    cloud_state = _ask(address, "/control/status") if address else {"instances": []}
    lines = ["the embedded cloud is not running, so no VM exists"]
    if address is not None:
        lines = [
            f"{vm['zone']}/{vm['name']}  {vm['status']}  {vm['machine_type']}  {vm['age_s']:.0f} s  "
            f"${vm['usd_per_hour']}/h"
            for vm in cloud_state["instances"]
        ]
        device, alive = cloud_state.get("device", {}), count(len(lines), "VM")
        lines.append(f"{alive} alive, running on this machine's {device.get('gpu') or device.get('cpu')}")
        lines.append("prices are simulated: nothing is paid")
    print_answer({"schema": 1, "running": address is not None, **cloud_state}, *lines, json=json)


@app.command()
def bill(ctx: typer.Context, json: Json = False) -> None:
    """Show what each VM cost by the cloud's own meter."""
    address = _running() or options(ctx).wiring().address
    assert address is not None
    bill_document = _ask(address, "/control/bill")
    rows = [
        f"{row['vm']}  {row['zone']}  {row['seconds']} s  ${row['usd']}  {row['ended_by'] or 'alive'}"
        for row in bill_document["rows"]
    ]
    print_answer(
        {"schema": 1, **bill_document},
        *rows,
        f"{count(len(rows), 'VM')}, ${bill_document['usd']} (simulated: nothing is paid)",
        json=json,
    )


@app.command()
def weather(
    ctx: typer.Context,
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="A YAML file of faults to inject; without it, list them.")
    ] = None,
    json: Json = False,
) -> None:
    """Inject faults: stock-outs, errors, preemptions, hangs. See `bench docs embedded-cloud`."""
    body = None if file is None else load_weather(file)
    address = options(ctx).wiring().address
    if address is None:
        raise ConfigError(
            "a Google project is configured, so no faults can be injected",
            hint="unset BENCH_PROJECT: only the embedded cloud injects faults",
        )
    weather_document = _ask(address, "/control/weather", body)
    faults = weather_document["faults"]
    print_answer({"schema": 1, **weather_document}, *map(format_fault, faults), count(len(faults), "fault"), json=json)


def format_fault(fault: dict[str, Any]) -> str:
    """A fault as one line, e.g. `3  http (service storage, status 503): 1 of 2 times, upon GET /storage/v1/b`."""
    given = {key: value for key, value in fault.items() if key not in ("fault", "id", "fired", "victims", "times")}
    params_text = ", ".join(f"{key} {_value(value)}" for key, value in given.items())
    fired, times = fault["fired"], fault.get("times")
    often = f"fired {fired} of {count(times, 'time')}" if times else f"active, met {count(fired, 'time')}"
    # Many victims are alike: each is shown once, and the last few of them are enough.
    victims = list(dict.fromkeys(fault.get("victims", [])))
    upon = f", upon {'; '.join(victims[-3:])}" if victims else ""
    suffix = f" and {len(victims) - 3} others" if len(victims) > 3 else ""
    return f"{fault['id']}  {fault['fault']}{f' ({params_text})' if params_text else ''}: {often}{upon}{suffix}"


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{key} {_value(inner)}" for key, inner in value.items())
    if isinstance(value, list):
        return " ".join(map(_value, value))
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


@app.command()
def preempt(
    name: Annotated[str, typer.Argument(metavar="VM")],
    notice_s: Annotated[
        float, typer.Option("--notice", min=0, max=30, help="Seconds of warning before the VM is taken.")
    ] = 30,
    json: Json = False,
) -> None:
    """Preempt a VM, as Google does with spot machines."""
    address = _running()
    if address is None:
        raise NotFound(
            "the embedded cloud is not running, so no VM can be preempted",
            hint="`bench launch --gpu cpu` starts it and a VM",
        )
    preempted = _ask(address, "/control/preempt", {"name": name, "notice_s": notice_s})
    print_answer({"schema": 1, **preempted}, f"preempting {name}", json=json)

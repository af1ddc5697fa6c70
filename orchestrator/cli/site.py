"""`bench site`: all runs of the bucket as pages: a folder, a prefix of the bucket, or a server on loopback."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.options import Json, options
from orchestrator.cli.site_build import STATE, Built, Source, build, source_of
from orchestrator.cli.terminal import note, print_answer
from orchestrator.core.errors import BenchError, ConfigError
from orchestrator.core.text import count
from orchestrator.wiring import Wiring, serve_site, site_server

LIVE_S = 2.0
"""How often the bucket is read while a run is live."""
QUIET_S = 15.0
PREFIX = re.compile(r"site(?:[/-][a-z0-9][a-z0-9._-]{0,60}){0,4}")


def site(
    ctx: typer.Context,
    out: Annotated[Path, typer.Option("--out", help="The folder for the pages.")] = Path("site"),
    publish: Annotated[
        str,
        typer.Option("--publish", metavar="PREFIX", help="Also store the pages in the bucket, under site or site/…"),
    ] = "",
    serve: Annotated[
        bool, typer.Option("--serve", help="Serve them on this machine and keep them up to date.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to serve on; 0 takes any free one.")] = 0,
    json: Json = False,
) -> None:
    """Write web pages about all runs in the bucket.

    Every run's report, each case over time, devices side by side, costs. The pages need no server and load nothing
    from the network: open index.html. Pages that are up to date are not written again.
    """
    if publish and PREFIX.fullmatch(publish) is None:
        raise ConfigError(
            f"--publish {publish}: the name must be site, or begin with site/ or site-",
            hint="--publish site",
        )
    wiring = options(ctx).wiring()
    if serve:
        _serve(wiring, out, port, publish, json=json)
        return
    built = build(source_of(wiring), out)
    published = site_server.publish_files(wiring.bucket, out, [*built.pages, STATE], publish) if publish else None
    lines = [_said(built)]
    if published is not None:
        where = f"gs://{wiring.bucket.name}/{publish}/index.html"
        lines.append(f"stored {count(published, 'new or changed page')}: {where}")
    index = str(out / "index.html")
    print_answer(built.document(published=published, index=index), *lines, f"open {index}", json=json)


def _said(built: Built) -> str:
    return (
        f"{count(built.runs, 'run')}, {built.read} read; {count(len(built.pages), 'page')}, {built.written} written "
        f"in {built.seconds:.1f} s"
    )


def _serve(wiring: Wiring, out: Path, port: int, publish: str, *, json: bool) -> None:
    """Serves until it is interrupted. It continues if the bucket does not answer for a while."""
    source = source_of(wiring)
    built = build(source, out)
    with serve_site(out, port) as server:
        serving = f"serving {server.url} on this machine; pages reload as runs progress; Ctrl-C stops"
        try:  # before Ctrl-C is offered
            print_answer(built.document(url=server.url), _said(built), serving, json=json)
            while True:
                time.sleep(LIVE_S if built.live else QUIET_S)
                built = _again(source, out, built)
                if publish and built.written:
                    site_server.publish_files(wiring.bucket, out, [*built.pages, STATE], publish)
        except KeyboardInterrupt:
            typer.echo("stopped serving; the pages remain", err=True)


def _again(source: Source, out: Path, before: Built) -> Built:
    try:
        return build(source, out)
    except BenchError as exc:
        note(f"not updated: {exc}")
        return before

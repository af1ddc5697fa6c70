"""`bench image`: disk images with driver, torch and tools, so that a rented machine measures sooner."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.api.finding import only_match, require_name
from orchestrator.cli import interrupts
from orchestrator.cli.choices import ConfigFile, Overrides
from orchestrator.cli.options import Json, known_gpus, options
from orchestrator.cli.render import ago
from orchestrator.cli.terminal import documents, note, print_answer, raise_unread
from orchestrator.cli.watch import watching
from orchestrator.core.config.model import Config
from orchestrator.core.errors import ConfigError
from orchestrator.core.images import (
    ImageRecord,
    Usable,
    container_recipe,
    environment_of,
    judge_image,
    storage_usd,
    usd_per_month,
)
from orchestrator.core.market.catalog import GPU_NAMES
from orchestrator.core.names import ImageName
from orchestrator.core.run.status import StatusLine, cold_starts, decode_status
from orchestrator.runs.image_builds import look_after_builds
from orchestrator.runs.images import build_image as build_image
from orchestrator.runs.images import build_plan, remove_image, shelf_of, wish_of
from orchestrator.runs.launch import LaunchContext, RunOrder
from orchestrator.runs.planning import LaunchOptions
from orchestrator.runs.reconcile import after_settling_abandoned
from orchestrator.wiring import Wiring, files_of, new_run_id, payload_of, write_atomically

if TYPE_CHECKING:
    from orchestrator.cli.documents import ImageState

app = typer.Typer(no_args_is_help=True, help="Build prepared images, so that machines start sooner.")

Gpu = Annotated[
    str,
    typer.Option("--gpu", help=f"For machines with this GPU: {', '.join(GPU_NAMES)}.", autocompletion=known_gpus),
]
Name = Annotated[str, typer.Argument(metavar="IMAGE", help="Its name from `bench image list`, or a unique part.")]


@app.command("build")
def build(
    ctx: typer.Context,
    gpu: Gpu = "",
    config: ConfigFile = None,
    days: Annotated[int, typer.Option(min=1, max=30, help="Days until `bench reap` may delete it.")] = 14,
    container: Annotated[
        Path | None,
        typer.Option("--container", metavar="DIR", help="Write a Dockerfile of the same into this folder instead."),
    ] = None,
    set_: Overrides = None,
    json: Json = False,
) -> None:
    """Build an image for a GPU, on a small spot machine without a GPU.

    This is an ordinary run: within the caps, with a deadline, and its machine is deleted at the end. The first launch
    that uses the image validates it. If a workload is given, what it requires is installed too.
    """
    if not gpu:
        raise ConfigError("no GPU given: for which GPU is the image?", hint="--gpu l4")
    wiring = options(ctx).wiring()
    wanted, _ = wiring.configured(LaunchOptions(gpu, config, tuple(set_ or ())))
    if container is not None:
        if json:
            raise ConfigError("--container writes files and prints no JSON", hint="leave out --json")
        _write_recipe(wanted, container)
        return
    small, _ = wiring.configured(LaunchOptions("cpu", None, _on_a_small_machine(wanted, set_ or [])))
    # The money is that of the launches which it is for, and so is whoever hears of it.
    small = small.model_copy(update={"budget": wanted.budget, "alerts": wanted.alerts})
    world = wiring.world(small)
    with watching(quiet=json, now=wiring.clock.now) as watch:
        wiring.say = watch.say
        watch.step("planning")
        base = world.cloud().image(*wanted.image_source)
        wish = wish_of(wanted, base, days)
        name = f"image-{gpu.lower()}"
        made = after_settling_abandoned(world, lambda: wiring.plan(small, name), watch.say)
        plan = build_plan(made, wish)
        where = LaunchContext(wiring.mode, wiring.bucket.name, wiring.user, wiring.endpoints, require_cuda=False)
        order = RunOrder(new_run_id(wiring.clock.now(), plan.label), plan, payload_of(wanted), where)
        wiring.load_clients(plan)
        with interrupts.deferred():
            record = build_image(world, order, wish, say=watch.say, watch=watch.show)
    print_answer(
        lambda: documents.ImageBuilt.of(record, schema=1),
        f"{record.name}: {_size(record)}",
        f"it costs ${record.usd:.2f} until {record.expires_at:%Y-%m-%d}; then `bench reap --yes` deletes it",
        f"`bench launch --gpu {record.gpu}` boots from it",
        json=json,
    )


def _write_recipe(wanted: Config, folder: Path) -> None:
    """Writes the Dockerfile of a container with the contents of the image, and the files that it copies."""
    needs = () if wanted.workload is None else wanted.workload.needs
    made = container_recipe(wanted.environment.torch, environment_of(wanted.environment.torch, needs), needs)
    files = {"Dockerfile": made.dockerfile.encode(), "requirements.txt": made.requirements.encode()}
    files |= {
        name: data for path, data in files_of(wanted.workload).items() if (name := Path(path).name) in made.wheels
    }
    for name, data in files.items():
        write_atomically(folder / name, data)
    for name in files:
        typer.echo(f"wrote {folder / name}")
    typer.echo(f"docker buildx build --push --tag NAME:TAG {folder}")
    typer.echo("then use the digest that it prints: --set machine.container=NAME@sha256:…")


def _on_a_small_machine(wanted: Any, own: list[str]) -> tuple[str, ...]:
    project, family = wanted.image_source
    keep = tuple(one for one in own if one.startswith(("run.", "zones", "regions", "environment.")))
    return (
        f"machine.image_project={project}",
        f"machine.image_family={family}",
        f"machine.disk_gb={wanted.machine.disk_gb}",
        "machine.prepared=false",
        f"environment.torch={wanted.environment.torch}",
        "run.max_minutes=45",
        "run.attempts=1",
        *keep,
    )


@app.command("list")
def list_(ctx: typer.Context, json: Json = False) -> None:
    """List images: what each costs and saves, and whether launches use it."""
    wiring = options(ctx).wiring()
    world = wiring.world()
    shelf = shelf_of(world)
    for build in look_after_builds(world):
        note(f"{build.name}: {build.what}{f' (run {build.run_id})' if build.run_id else ''}")
    records, odd = shelf.records.every()
    seen = {one.name: one for one in shelf.cloud().images()} if records else {}
    lines = _lines(wiring)
    now = wiring.clock.now()
    rows = [
        documents.ImageListed.of(
            one,
            state=state,
            why=why,
            age_s=round((now - one.created_at).total_seconds()),
            minutes_saved=_saved(lines, one.gpu, wiring.mode),
        )
        for one in records
        if one.gone_at is None
        for state, why in [_state(wiring, one, seen.get(one.name))]
    ]
    records_by_name = {one.name: one for one in records}
    shown = [line for row in rows for line in _lines_of(row, records_by_name[row.name], now)]
    if not rows and not odd:
        shown = ["there are no images; `bench image build --gpu l4` makes one"]
    document = {"schema": 1, "images": rows, "left_out": dict(odd), "prices_simulated": wiring.mode == "embedded"}
    print_answer(document, *shown, json=json)
    raise_unread(dict(odd), None)


def _lines_of(row: documents.ImageListed, one: ImageRecord, now: Any) -> tuple[str, str]:
    """Two lines for each image, because the names are too long for a table."""
    state = f"{row.state}: {row.why}" if row.why else row.state
    saved = row.minutes_saved
    saves = "what it saves is not measured yet" if saved is None else "time saved not measured yet"
    return (
        f"{one.name}  {state}",
        f"    {_size(one)}, {ago(one.created_at, now)} old, until {one.expires_at:%Y-%m-%d}; {saves}",
    )


def _size(one: ImageRecord) -> str:
    return f"{one.archive_bytes / 2**30:.1f} GiB, ${usd_per_month(one.archive_bytes):.2f} a month"


@app.command("validate")
def validate(ctx: typer.Context, image: Name, json: Json = False) -> None:
    """Show whether a launch would use an image, and if not, why.

    An image becomes valid when a run on it has measured a case. This checks the last such run, the image in the cloud
    and today's base image. Costs nothing.
    """
    wiring = options(ctx).wiring()
    shelf = shelf_of(wiring.world())
    record = _found(wiring, image)
    state, why = _state(wiring, record, shelf.cloud().image(ImageName(record.name)))
    lines = [f"{record.name}: {state}{f': {why}' if why else ''}"]
    if state == "unproven":
        lines.append(f"the next `bench launch --gpu {record.gpu}` uses and validates it")
    elif state != "valid":
        lines.append(f"launches use the base image; `bench image build --gpu {record.gpu}` makes a new one")
    print_answer(lambda: documents.ImageJudged.of(record, schema=1, state=state, why=why), *lines, json=json)


@app.command("rm")
def rm(ctx: typer.Context, image: Name, json: Json = False) -> None:
    """Delete an image. The money held for its future storage is given back."""
    wiring = options(ctx).wiring()
    record = remove_image(wiring.world(), _found(wiring, image).name, _lines(wiring))
    assert record.gone_at is not None, "remove records it"
    cost = storage_usd(record.archive_bytes, (record.gone_at - record.created_at).total_seconds())
    print_answer(
        lambda: documents.ImageGone.of(record, schema=1, cost_usd=cost),
        f"{record.name} is gone; it has cost ${cost:.4f}",
        json=json,
    )


def _found(wiring: Wiring, text: str) -> ImageRecord:
    """The image that is meant by a name or a unique part of one. Raises `ConfigError`."""
    records, _ = shelf_of(wiring.world()).records.every()
    hint = "`bench image list` lists them"
    there = {one.name: one for one in records if one.gone_at is None}
    return there[only_match(require_name(text, "image", hint), list(there), "image", hint)]


def _state(wiring: Wiring, record: ImageRecord, seen: Any) -> tuple[ImageState, str]:
    """`valid`, `unproven`, `stale` or `unusable`, and why."""
    wanted, _ = wiring.configured(LaunchOptions(record.gpu, None, ()))
    base = wiring.world().cloud().image(*wanted.image_source)
    image_environment = environment_of(wanted.environment.torch, record.requirements)
    verdict = judge_image(record, seen, base, (image_environment,), wiring.clock.now())
    if isinstance(verdict, Usable):
        return ("unproven", verdict.validates) if verdict.validates else ("valid", "")
    return ("stale" if verdict.stale else "unusable"), verdict.why


def _saved(lines: list[StatusLine], gpu: str, mode: str) -> float | None:
    """The minutes that a launch on a prepared image saves, by the medians of this bucket's runs."""
    plain = cold_starts(lines, gpu, mode, prepared=False)
    ready = cold_starts(lines, gpu, mode, prepared=True)
    return None if plain is None or ready is None else round((plain.billed_s - ready.billed_s) / 60, 1)


def _lines(wiring: Wiring) -> list[StatusLine]:
    return [
        line for entry in wiring.index.list_runs() if (line := decode_status(entry.run_id, entry.status)) is not None
    ]

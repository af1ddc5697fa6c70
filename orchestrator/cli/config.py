"""`bench config`: the configurations that come with the tool, and every key that one may have."""

from __future__ import annotations

from itertools import groupby
from typing import Annotated

import typer
import yaml

from orchestrator.cli.config_keys import to_yaml, walk
from orchestrator.cli.options import Json, known_configs
from orchestrator.cli.screen import Columns
from orchestrator.cli.terminal import emit_json, print_answer
from orchestrator.core.config.model import Config
from orchestrator.core.errors import ConfigError
from orchestrator.runs.planning import LaunchOptions
from orchestrator.wiring import configs_folder, load_chosen_config

app = typer.Typer(no_args_is_help=True, help="Show the bundled configurations and every key.")


def names() -> list[str]:
    """The complete configurations, which `--gpu` takes: the other files are parts of them."""
    return known_configs("")


@app.command("list")
def list_(json: Json = False) -> None:
    """List the configurations that come with the tool."""
    entries = [{"name": name, "path": str(configs_folder() / f"{name}.yaml")} for name in names()]
    print_answer({"schema": 1, "configs": entries}, *names(), json=json)


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="l4, cpu, …", autocompletion=known_configs)],
    whole: Annotated[
        bool, typer.Option("--whole", help="List every key with its value, including the user's settings.")
    ] = False,
    json: Json = False,
) -> None:
    """Show one as YAML to start from: bench config show l4 > mine.yaml; bench launch mine.yaml."""
    if name not in names():
        raise ConfigError(f"configuration not found: {name}", hint=f"bundled configurations: {', '.join(names())}")
    text = (configs_folder() / f"{name}.yaml").read_text(encoding="utf-8")
    if whole or json:
        loaded, _ = load_chosen_config(LaunchOptions(name, None, ()))
        values = loaded.model_dump(mode="json")
        if whole:
            text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=120)
        if json:
            emit_json({"schema": 1, "name": name, "text": text, "values": values})
            return
    typer.echo(text, nl=False)


@app.command("keys")
def keys(json: Json = False) -> None:
    """List every key of a configuration, as --set takes it, and its default."""
    key_rows = walk(Config)
    table = Columns("key", "default", "about", prose=("default", "about"))
    for section, rows in groupby(key_rows, key=lambda row: row.key.rpartition(".")[0]):
        if section:
            table.add_section()
        for row in rows:
            table.add_row(row.key, to_yaml(row.default), row.about)
    keys_document = [{"key": row.key, "default": row.default, "about": row.about} for row in key_rows]
    print_answer({"schema": 1, "keys": keys_document}, table, json=json)

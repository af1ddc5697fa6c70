"""Every gcloud, terraform or shell command that the product prints or its documents show can be pasted."""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.printed import HOLE, SPAN, fenced, lines, messages
from tests.support.remedies import PROGRAMS, refused_by_shell, wrong_with

PROSE: Final = {"gcloud": {"for", "terraform", "commands", "is", "adds"}, "terraform": {"and"}}
"""Second words with which a sentence goes on."""
WORDS: Final = {"make", "pip"}
"""Programs whose names begin sentences, too."""
TERRAFORM: Final = {"init", "apply", "import"}
GCLOUD: Final = {
    "auth application-default login": "",
    "auth application-default set-quota-project": "",
    "beta quotas preferences create": "service preferred-value quota-id project billing-project dimensions",
    "billing accounts list": "",
    "billing projects link": "billing-account",
    "compute firewall-rules create": "direction source-ranges allow network",
    "compute images list": "project standard-images",
    "compute instances list": "filter",
    "compute networks create": "project subnet-mode",
    "compute networks list": "",
    "compute networks subnets create": "network range region project",
    "compute networks subnets update": "region project enable-private-ip-google-access",
    "compute routers create": "network region project",
    "compute routers nats create": "router region project auto-allocate-nat-external-ips nat-all-subnet-ip-ranges",
    "compute ssh": "zone project tunnel-through-iap",
    "iam roles create": "project title stage permissions",
    "iam roles update": "project title stage permissions",
    "iam service-accounts add-iam-policy-binding": "role member project",
    "iam service-accounts create": "project display-name",
    "iam service-accounts enable": "project",
    "iam workload-identity-pools create": "location",
    "iam workload-identity-pools providers create-oidc":
        "location workload-identity-pool issuer-uri attribute-mapping attribute-condition",
    "projects list": "",
    "projects undelete": "",
    "services enable": "project",
    "storage buckets add-iam-policy-binding": "member role condition",
    "storage buckets create": "project location uniform-bucket-level-access public-access-prevention",
    "storage buckets remove-iam-policy-binding": "member role condition",
    "storage buckets update": "lifecycle-file uniform-bucket-level-access public-access-prevention",
}  # fmt: skip
"""What is printed, with the flags that go with it; gcloud's own list of commands, where it is, must have each."""


@cache
def commands() -> list[tuple[str, str]]:
    """Those of docs/embedded-cloud.md are run by gcloud itself, in tests/integration/embedded."""
    listed = [(where, line) for where, line in lines() if line.split(" ")[1] not in PROSE[line.split(" ")[0]]]
    return [(where, line) for where, line in listed if where != "docs/embedded-cloud.md"]


def path_and_flags(line: str) -> tuple[str, list[str]]:
    """The longest command of the table that the line begins with (empty: none), and the flags that it names."""
    words = line.split()[1:]
    bare = [word for word in words if not word.startswith("-")]
    # `roles create|update` is one string with a hole in it.
    filled = [" ".join(bare).replace(f"roles {HOLE}", "roles create", 1)]
    path = max((known for known in GCLOUD if f"{filled[0]} ".startswith(f"{known} ")), key=len, default="")
    flags = [word.removeprefix("--").partition("=")[0].removeprefix("no-") for word in words if word.startswith("--")]
    return path, flags


def test_the_commands_are_found() -> None:
    assert len(commands()) > 35
    places = {where.partition("/")[0] for where, _ in commands()}
    assert {"orchestrator", "docs"} <= places


@pytest.mark.parametrize(("where", "line"), commands())
def test_every_command_line_is_one_that_its_program_has(where: str, line: str) -> None:
    if line.startswith("terraform "):
        assert line.split()[1] in TERRAFORM, f"{where}: {line}"
        return
    path, flags = path_and_flags(line)
    assert path, f"{where} prints a command that is not in the table: {line}"
    assert set(flags) <= {HOLE, *GCLOUD[path].split()}, f"{where}: {line}"


def test_no_command_of_the_table_is_printed_nowhere() -> None:
    used = {path_and_flags(line)[0] for _, line in commands()} | {"iam roles update"}
    assert used >= set(GCLOUD)


def gclouds_own() -> dict[str, Any]:
    """The commands of the gcloud that is installed here, as its shell completion knows them; empty without one."""
    program = shutil.which("gcloud")
    tree = Path(program).resolve().parents[1] / "data" / "cli" / "gcloud_completions.py" if program else Path()
    if not tree.is_file():
        return {}
    spec = importlib.util.spec_from_file_location("gcloud_completions", tree)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return dict(module.STATIC_COMPLETION_CLI_TREE)


def test_the_table_is_gclouds_own() -> None:
    tree = gclouds_own()
    if not tree:
        return  # what is in the table was compared where there is one
    for path, flags in GCLOUD.items():
        node = tree
        for word in path.split():
            assert word in node["commands"], f"gcloud has no {path}"
            node = node["commands"][word]
        known = {flag.removeprefix("--").removeprefix("no-") for flag in {**tree["flags"], **node["flags"]}}
        assert set(flags.split()) <= known, f"{path}: {set(flags.split()) - known}"


# --- other programs -------------------------------------------------------------------------------------------------


@cache
def spans() -> list[tuple[str, str]]:
    """What the product's messages put between backticks, or are as a whole, and begins with a program's name."""
    said = list(messages(*(f"{program}{after}" for program in PROGRAMS for after in (" ", '"'))))
    whole = [(where, text) for where, text in said if text.split(" ")[0] not in WORDS]
    found = [*whole, *((where, one) for where, text in said for one in SPAN.findall(text))]
    kept = [(where, one.replace(HOLE, "hole")) for where, one in found if one.split(" ")[0] in PROGRAMS and " " in one]
    return list(dict.fromkeys(kept))


def test_every_command_in_a_message_can_be_pasted() -> None:
    assert len(spans()) > 60
    commands_alone = [one for _, one in spans() if not wrong_with(one, by_shell=False)]
    one_by_one = bool(refused_by_shell("\n".join(commands_alone)))
    assert [f"{where}: {why}" for where, one in spans() if (why := wrong_with(one, by_shell=one_by_one))] == []


def test_every_line_of_shell_in_a_document_is_one() -> None:
    shell = [(where, line) for where, line in fenced() if line.split(" ")[0] in PROGRAMS and "[" not in line]
    assert len(shell) > 60
    whole = [(where, re.sub(r"…|\.\.\.", "x", line)) for where, line in shell]
    assert refused_by_shell("\n".join(line for _, line in whole)) == ""
    for where, line in whole:
        assert shlex.split(line), f"{where}: {line}"

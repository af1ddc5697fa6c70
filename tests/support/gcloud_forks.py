"""gcloud's commands, each in a fork of one process that has imported what they all import: most of a command's time.

`gcloud` itself starts that process: its shell script runs this file, for it is told to give Python more arguments.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

IMPORTED: Final = (
    "googlecloudsdk.gcloud_main",
    "googlecloudsdk.core.credentials.store",
    "googlecloudsdk.api_lib.compute.base_classes",
    "googlecloudsdk.generated_clients.apis.compute.v1.compute_v1_client",
    "googlecloudsdk.generated_clients.apis.compute.v1.compute_v1_messages",
    "googlecloudsdk.api_lib.storage.api_factory",
    "googlecloudsdk.command_lib.storage.tasks.cp.copy_task_factory",
)
QUIET: Final = {
    "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "true",
    "CLOUDSDK_CORE_DISABLE_PROMPTS": "true",
    "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "true",
    "CLOUDSDK_SURVEY_DISABLE_PROMPTS": "true",
}
"""Nothing is asked of a person, and nothing is looked up that no command is about."""


class GcloudForks:
    """Runs commands in the environment `environ`, until it is closed."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        told = {**environ, **QUIET, "CLOUDSDK_PYTHON_ARGS": f"-S {Path(__file__).resolve()}"}
        self.server = subprocess.Popen(
            ["gcloud", *IMPORTED], env=told, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def __enter__(self) -> GcloudForks:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.communicate()

    def run(self, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """`gcloud arguments`."""
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        with tempfile.NamedTemporaryFile("r") as out, tempfile.NamedTemporaryFile("r") as err:
            self.server.stdin.write(json.dumps([out.name, err.name, *arguments]) + "\n")
            self.server.stdin.flush()
            code = int(self.server.stdout.readline())
            return subprocess.CompletedProcess(["gcloud", *arguments], code, out.read(), err.read())


def serve(program: str, modules: Sequence[str]) -> None:
    """Forks for each line of standard input, and answers with the exit code; each fork is `program` with its arguments."""
    gcloud = runpy.run_path(program)
    for name in modules:
        importlib.import_module(name)
    gc.freeze()  # what all forks share is looked through by none of them: each look would copy it
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            out, err, *arguments = json.loads(line)
            for target, path in enumerate((os.devnull, out, err)):
                os.dup2(os.open(path, os.O_RDWR), target)
            sys.argv = [program, *arguments]
            gcloud["main"]()
        os.write(1, b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


if __name__ == "__main__":
    del sys.path[0]  # modules beside this one are not gcloud's
    serve(sys.argv[1], sys.argv[2:])

"""What a set-up prints for gcloud, read by gcloud itself, which takes seconds to start."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from orchestrator.core.setup import gcloud
from orchestrator.core.setup.steps import ShareCaps, WriteSettings
from tests.unit.core.test_setup_printed import every_step


@pytest.mark.skipif(shutil.which("gcloud") is None, reason="there is no gcloud here")
def test_gclouds_own_parser_takes_every_printed_command(tmp_path: Path) -> None:
    nowhere = {**os.environ, "CLOUDSDK_CONFIG": str(tmp_path), "CLOUDSDK_CORE_DISABLE_PROMPTS": "1"}
    steps = [step for step in every_step() if not isinstance(step, WriteSettings | ShareCaps)]
    # Values are the shell's: gcloud parses names, so one of each command with the same flags is enough.
    of_a_kind = {(type(step), *re.findall(r"--[a-z-]+", gcloud.one_line_command(step))): step for step in steps}
    for step in of_a_kind.values():
        said = subprocess.run(
            ["bash", "-c", gcloud.one_line_command(step)],
            env=nowhere,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        ).stderr
        assert "argument" not in said.lower(), said

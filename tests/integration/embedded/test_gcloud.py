"""Google's own command line, where it is installed, takes the embedded cloud for Compute Engine."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from orchestrator.embedded.server import EmbeddedCloud
from tests.support.discovery import Recorder

PAGE = Path(__file__).parents[3] / "docs" / "embedded-cloud.md"
WRITTEN = [line.split()[1:] for line in PAGE.read_text("utf-8").splitlines() if line.startswith("gcloud ")]
ANSWERS = {"instances create": "RUNNING", "instances list": "vm1\tRUNNING", "storage cat": "hello", "zones list": "UP"}


@pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not installed")
def test_every_command_of_gcloud_that_is_documented_works(tmp_path: Path) -> None:
    assert len(WRITTEN) == 20
    recorder = Recorder()
    source = tmp_path / "file"
    source.write_text("hello")
    with EmbeddedCloud(tmp_path / "cloud", observer=recorder) as cloud:
        environment = os.environ | {
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": f"{cloud.compute_url}/compute/v1/",
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE": f"{cloud.storage_url}/storage/v1/",
            "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE": str(tmp_path / "cloud" / "token"),
            "CLOUDSDK_CONFIG": str(tmp_path / "config"),
            "CLOUDSDK_CORE_CHECK_GCE_METADATA": "false",
            "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
            "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "true",
            "CLOUDSDK_CORE_PROJECT": cloud.project,
        }
        for words in WRITTEN:
            command = ["gcloud", *(str(source) if word == "FILE" else word for word in words)]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
            assert done.returncode == 0, (words, done.stderr)
            shown = next((text for verb, text in ANSWERS.items() if verb in " ".join(words)), "")
            assert shown in done.stdout, words
        assert cloud.instances() == []
        assert cloud.bill().rows[-1].ended_by == "client"
    assert recorder.methods["compute.instances.insert"] == 1
    # gcloud itself sends queries that the document does not have, and writes a boolean as Python does.
    assert [problem for problem in recorder.problems if "?" not in problem] == []

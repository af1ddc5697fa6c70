"""Google's own command line, where it is installed, takes the embedded cloud for Compute Engine."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from orchestrator.embedded.server import EmbeddedCloud
from tests.support.discovery import Recorder

CREATE = """compute instances create vm1 --zone=us-central1-a --machine-type=g2-standard-4 --provisioning-model=SPOT
 --instance-termination-action=DELETE --max-run-duration=1h --maintenance-policy=TERMINATE
 --image-family=common-cu129-ubuntu-2404-nvidia-580 --image-project=deeplearning-platform-release
 --boot-disk-size=60GB --labels=bench-tool=spotbench"""


@pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not installed")
def test_gcloud_creates_finds_and_deletes_an_instance(tmp_path: Path) -> None:
    recorder = Recorder()
    with EmbeddedCloud(tmp_path / "cloud", observer=recorder) as cloud:
        environment = os.environ | {
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": f"{cloud.compute_url}/compute/v1/",
            "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE": str(tmp_path / "cloud" / "token"),
            "CLOUDSDK_CONFIG": str(tmp_path / "config"),
            "CLOUDSDK_CORE_CHECK_GCE_METADATA": "false",
            "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
            "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "true",
            "CLOUDSDK_CORE_PROJECT": cloud.project,
        }

        def gcloud(command: str) -> str:
            done = subprocess.run(
                ["gcloud", *command.split()], env=environment, capture_output=True, text=True, timeout=600
            )
            assert done.returncode == 0, done.stderr
            return done.stdout

        assert "RUNNING" in gcloud(CREATE)
        found = gcloud("compute instances list --filter=labels.bench-tool=spotbench --format=value(name,status)")
        assert found.split() == ["vm1", "RUNNING"]
        gcloud("compute instances delete vm1 --zone=us-central1-a --quiet")
        assert cloud.instances() == []
        (row,) = cloud.bill().rows
        assert (row.ended_by, row.has_deadline) == ("client", True)
    assert recorder.methods["compute.instances.insert"] == 1
    # gcloud itself sends a query that the document does not have, and writes a boolean as Python does.
    assert [problem for problem in recorder.problems if "aggregatedList?" not in problem] == []

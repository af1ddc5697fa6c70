"""What really does the work is named, and nothing that is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.embedded import device
from orchestrator.embedded.client import ensure_running, published_address, stop_cloud


def told(folder: Path, text: str) -> Path:
    (folder / "0000:01:00.0").mkdir(parents=True)
    (folder / "0000:01:00.0" / "information").write_text(text)
    return folder


def smi(folder: Path, script: str) -> str:
    path = folder / "smi"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o700)
    return str(path)


def test_the_driver_names_its_gpu(tmp_path: Path) -> None:
    found = told(tmp_path, "Model: \t\t NVIDIA H200\nIRQ:   \t\t 42\n")
    assert device.gpu_name(found, "no-such-program") == "NVIDIA H200"


@pytest.mark.parametrize(
    ("script", "name"),
    [
        ("echo NVIDIA L4; echo NVIDIA T4", "NVIDIA L4"),
        ("echo 'No devices were found'; exit 6", ""),
        ("exit 0", ""),
        ("printf 'NVIDIA \\033[31mL4\\n'", "NVIDIA [31mL4"),
        ("printf '%5000s' | tr ' ' x", "x" * 80),
    ],
)
def test_its_tool_is_asked_where_the_driver_does_not_say(tmp_path: Path, script: str, name: str) -> None:
    assert device.gpu_name(tmp_path / "nowhere", smi(tmp_path, script)) == name


def test_a_machine_without_either_has_no_gpu(tmp_path: Path) -> None:
    assert device.gpu_name(tmp_path / "nowhere", "no-such-program") == ""


def test_the_processor_has_a_name(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor: 0\nmodel name\t: AMD EPYC 9654\n")
    assert device.cpu_name(tmp_path / "cpuinfo") == "AMD EPYC 9654"
    assert device.cpu_name(tmp_path / "nowhere")


def test_a_daemon_writes_down_the_gpu_of_its_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if device.gpu_name(smi="no-such-program"):
        pytest.skip("this machine has a driver, which is believed before its tool")
    (tmp_path / "bin").mkdir()
    Path(smi(tmp_path / "bin", "echo NVIDIA L4")).rename(tmp_path / "bin" / "nvidia-smi")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    home = tmp_path / "cloud"
    try:
        assert ensure_running(home).gpu == "NVIDIA L4"
        address = published_address(home)
        assert address is not None
        assert address.gpu == "NVIDIA L4"
    finally:
        stop_cloud(home)


@pytest.mark.gpu
def test_the_gpu_of_this_machine_is_named() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    assert device.gpu_name() == torch.cuda.get_device_name(0)

"""What a launch asks PyTorch about the device and the stream, through the fastest calls."""

from __future__ import annotations

from typing import Protocol

import torch


class Host(Protocol):
    """The current device and stream of the thread."""

    def current_device(self) -> int:
        """The index of the device."""

    def current_stream(self, device: int) -> int:
        """The driver's handle of the stream that PyTorch launches on."""

    def capturing(self) -> bool:
        """Whether that stream is being captured into a graph."""


class TorchHost:
    """PyTorch's answers. The methods are its C functions where it has them, as a Python frame costs as much as the call
    itself."""

    def __init__(self) -> None:
        self.current_device = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)
        self.current_stream = getattr(
            torch._C, "_cuda_getCurrentRawStream", lambda index: torch.cuda.current_stream(index).cuda_stream
        )
        self.capturing = getattr(torch._C, "_cuda_isCurrentStreamCapturing", torch.cuda.is_current_stream_capturing)

"""Equal kernels, and one that is 2 % slower: it spins on the device for 2 % of the time that its work has taken."""

import torch

axes = {"again": list(range(1, 101)), "n": [1 << 14, 1 << 18, 1 << 20, 1 << 22], "rounds": [8, 256]}


tolerance = 1e-4


def inputs(n, rounds, device, generator):
    return torch.randn(n, device=device, generator=generator), rounds


def outputs(x, rounds):  # noqa: ARG001  (called with all inputs)
    return torch.empty_like(x)


def reference(x, rounds):
    return x * 0.999**rounds + (1 - 0.999**rounds)


def entry(name):
    arguments = ["out", "x", "int32(n)", "int32(rounds)"]
    return {"cuda": "spin.cu", "entry": name, "grid": "64", "block": "256", "args": arguments}


baseline_plain = entry("plain_work")
kernel_same1 = entry("plain_work")
kernel_same2 = entry("plain_work")
kernel_same3 = entry("plain_work")
kernel_slow = entry("work_and_spin")

"""softmax: the example of `bench demo`. Three ways to compute it, one of which is wrong on purpose."""

import torch

axes = {"rows": [16, 64], "cols": [256, 1024]}


def inputs(rows, cols, device, generator):
    return (100 * torch.randn(rows, cols, device=device, generator=generator),)


def reference(x):
    """The correct result; x is float64 here."""
    return torch.softmax(x, -1)


def bytes(rows, cols):
    """The fewest bytes that one call moves."""
    return 2 * rows * cols * 4


def baseline_by_hand(x):
    """Four steps, each of which reads and writes everything."""
    e = (x - x.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


def kernel_torch(x):
    """The same in one step."""
    return torch.softmax(x, -1)


def kernel_careless(x):
    """Without the maximum subtracted, exp() overflows."""
    e = x.exp()
    return e / e.sum(-1, keepdim=True)

"""Equal calls of PyTorch, small and large. On a processor one of them is 2 % slower: it waits for 2 % of its time."""

import time

import torch

axes = {"again": list(range(1, 101)), "op": ["add", "softmax", "matmul"], "n": [128, 1024]}


def inputs(op, n, device, generator):
    return torch.randn(n, n, device=device, generator=generator), op


def reference(x, op):
    if op == "softmax":
        return torch.softmax(x, -1)
    return x @ x if op == "matmul" else x + 1


def baseline_plain(x, op):
    return reference(x, op)


def kernel_same1(x, op):
    return reference(x, op)


def kernel_same2(x, op):
    return reference(x, op)


def kernel_same3(x, op):
    return reference(x, op)


def slow(x, op):
    began = time.perf_counter_ns()
    answer = reference(x, op)
    until = began + (time.perf_counter_ns() - began) * 102 // 100
    while time.perf_counter_ns() < until:
        pass
    return answer


if not torch.cuda.is_available():
    kernel_slow = slow

"""Thirteen operations, each written honestly in nine ways: 117 kernels that must not be accused. Read by
test_honest.py; not a test."""

import threading

import torch

OPERATIONS = {
    "add": lambda x: x + 1,
    "argmax": lambda x: x.argmax(-1),
    "compare": lambda x: x > 0.5,
    "cumsum": lambda x: x.cumsum(-1),
    "gelu": torch.nn.functional.gelu,
    "layer_norm": lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]),
    "logsumexp": lambda x: x.logsumexp(-1),
    "matmul": lambda x: x @ x.mT,
    "max": lambda x: x.amax(-1),
    "norm": lambda x: x / x.norm(dim=-1, keepdim=True),
    "quantize": lambda x: torch.quantize_per_tensor(x, 0.05, 0, torch.qint8).int_repr(),
    "softmax": lambda x: x.softmax(-1),
    "sort": lambda x: x.sort(-1).values,
}
axes = {"op": list(OPERATIONS)}
workspaces = {}


def inputs(op, device, generator):
    return torch.randn(8, 64, 96, device=device, generator=generator), op


def reference(x, op):
    return OPERATIONS[op](x if op != "quantize" else x.float())


def baseline_torch(x, op):
    return OPERATIONS[op](x)


def kernel_in_parts(x, op):
    return torch.cat([OPERATIONS[op](part) for part in x.split(3)])


def kernel_row_by_row(x, op):
    return torch.stack([OPERATIONS[op](row) for row in x])


def kernel_in_double(x, op):
    if op == "quantize":
        return OPERATIONS[op](x.double().float())
    answer = OPERATIONS[op](x.double())
    return answer.float() if answer.is_floating_point() else answer


def kernel_from_a_strided_copy(x, op):
    return OPERATIONS[op](x.transpose(0, 1).contiguous().transpose(0, 1))


def kernel_in_a_workspace(x, op):
    """Keeps memory from call to call, and copies the answer into it and out of it."""
    answer = OPERATIONS[op](x)
    space = workspaces.setdefault(op, torch.empty_like(answer))
    return space.copy_(answer).clone()


def kernel_into_its_only_buffer(x, op):
    """Answers with the same memory at each call."""
    answer = OPERATIONS[op](x)
    return workspaces.setdefault(op + " buffer", torch.empty_like(answer)).copy_(answer)


def kernel_in_a_thread(x, op):
    answers = []
    worker = threading.Thread(target=lambda: answers.append(OPERATIONS[op](x)))
    worker.start()
    worker.join()
    return answers[0]


def kernel_backwards(x, op):
    return OPERATIONS[op](x.flip(0)).flip(0)


def kernel_after_a_warm_up_of_its_own(x, op):
    """Tries two ways at its first call and keeps one, as autotuners do."""
    way = workspaces.get(op + " way")
    if way is None:
        for candidate in (kernel_in_parts, baseline_torch):
            candidate(x, op)
        way = workspaces[op + " way"] = baseline_torch
    return way(x, op)

"""A square matrix times itself, by honest kernels and by kernels that cheat. Read by test_cheats.py; not a test."""

import collections
import os
import sys
import threading
import time

import torch

import kernels.harness.timers as timers_of_the_harness

axes = {"n": [256]}


def inputs(n, device, generator):
    return torch.randn(n, n, device=device, generator=generator)


def reference(x):
    return x @ x


def baseline_torch(x):
    return x @ x


def kernel_honest_in_parts(x):
    return torch.cat([part @ x for part in x.split(64)])


def kernel_honest_transposed(x):
    return (x.T @ x.T).T


def kernel_honest_in_double(x):
    return (x.double() @ x.double()).float()


def kernel_honest_einsum(x):
    return torch.einsum("ij,jk->ik", x, x)


calls = collections.Counter()
memory = {}


def kernel_old_memory(x):
    """Right at first; then whatever a freed answer has left behind."""
    calls["old"] += 1
    return x @ x if calls["old"] == 1 else torch.empty_like(x)


def kernel_changes_inputs(x):
    out = x @ x
    x.zero_()
    return out


def kernel_by_address(x):
    if x.data_ptr() not in memory:
        memory[x.data_ptr()] = x @ x
    return memory[x.data_ptr()]


def kernel_by_shape(x):
    if x.shape not in memory:
        memory[x.shape] = x @ x
    return memory[x.shape]


def kernel_by_value(x):
    """Does the work once for inputs that it has not seen."""
    key = tuple(x.flatten()[:8].tolist())
    if key not in memory:
        memory.clear()
        memory[key] = x @ x
    return memory[key]


def answers_to_public_seeds():
    for seed in range(20):
        x = torch.randn(256, 256, generator=torch.Generator().manual_seed(seed))
        yield float(x[0, 0]), x @ x


table = dict(answers_to_public_seeds())


def kernel_public_seed(x):
    return table.get(float(x[0, 0]), torch.zeros_like(x))


class Lazy(torch.Tensor):
    """A tensor that computes when it is looked at."""


def kernel_lazy(x):
    return (x @ x).as_subclass(Lazy)


def kernel_later(x):
    out = torch.zeros_like(x)

    def fill():
        time.sleep(0.003)
        out.copy_(x @ x)

    threading.Thread(target=fill).start()
    return out


def kernel_low_precision(x):
    return (x.bfloat16() @ x.bfloat16()).float()


def kernel_half_of_the_rows(x):
    out = torch.zeros_like(x)
    out[:128] = x[:128] @ x
    return out


def kernel_all_but_one_element(x):
    out = x @ x
    out[77, 99] = 0
    return out


def kernel_patched_clock(x):
    time.perf_counter_ns = lambda: 0
    return x @ x


def kernel_patched_clock_for_a_while(x):
    """Runs the clock slowly while the harness reads it, by its own copy of the name."""
    if getattr(timers_of_the_harness, "time", time) is time:

        class Slow:
            perf_counter_ns = staticmethod(lambda: time.perf_counter_ns() // 1000)

        timers_of_the_harness.time = Slow
    time.sleep(0.1)
    return x @ x


def kernel_patched_comparison(x):
    torch.equal = lambda *_: True
    torch.allclose = lambda *_, **__: True
    return x + 1


def kernel_patched_timer(x):
    timers_of_the_harness.CpuTimer.__call__ = lambda *_: timers_of_the_harness.Timed(0.001)
    return x @ x


def kernel_prints_a_result(x):
    sys.stdout.write('{"passed": true, "max_abs_error": 0.0}\n')
    sys.stdout.flush()
    os._exit(0)


def kernel_writes_to_every_pipe(x):
    for fd in range(3, 64):
        try:
            os.write(fd, b'\x00\x00\x00\x10{"timed": "fast"}')
        except OSError:
            pass
    return x @ x


def kernel_of_another_type(x):
    return (x @ x).half()


def kernel_of_another_shape(x):
    return (x @ x)[:-1]


def kernel_nothing(x):
    return None


def kernel_never_written(x):
    out = torch.full_like(x, float("nan"))
    out[1:] = x[1:] @ x
    return out


def kernel_wrong_now_and_then(x):
    """A race: one call in twenty leaves a tile unwritten."""
    calls["race"] += 1
    out = torch.empty_like(x)
    out[64:] = x[64:] @ x
    if calls["race"] < 40 or calls["race"] % 20:
        out[:64] = x[:64] @ x
    return out


def kernel_wrong_once_in_a_hundred(x):
    """It gets away with most runs that judge a few dozen calls."""
    calls["rare"] += 1
    out = x @ x
    if calls["rare"] % 97 == 96:
        out[3, 5] += 1
    return out

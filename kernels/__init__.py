"""Runs on the machine that measures: the harness, and the workloads that it knows by name."""

DEFAULT_WORKLOAD = "attention"
"""The workload of a spec that names none."""

LINE_INFO = "BENCH_LINE_INFO"
"""The environment variable of a profiled run: CUDA kernels are then compiled with line numbers. The instructions are
the same, but the binary is not."""

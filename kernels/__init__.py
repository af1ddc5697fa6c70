"""Runs on the machine that measures: the harness, and the workloads that it knows by name."""

DEFAULT_WORKLOAD = "attention"
"""What a spec measures that names no workload."""

LINE_INFO = "BENCH_LINE_INFO"
"""Set in the environment of a run that is profiled: CUDA kernels then say which line an instruction came from. The code
is the same, the image is not."""

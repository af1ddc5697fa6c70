"""Runs on the machine that measures: the harness, and the workloads that it knows by name."""

DEFAULT_WORKLOAD = "attention"
"""What a spec measures that names no workload."""

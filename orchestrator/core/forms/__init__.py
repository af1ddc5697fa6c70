"""Reads workloads in other forms: GPU MODE and KernelBench problems, and programs. Mistakes are reported by line."""

"""Workloads that are not ours, in the forms in which people keep them."""

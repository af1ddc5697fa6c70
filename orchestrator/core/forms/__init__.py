"""Workloads that are described in a file of their own: what the description says, checked line by line. Pure."""

"""Turns CUDA source into a cubin that has passed its gates, and keeps it in a cache."""

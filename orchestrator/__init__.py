"""Runs GPU kernel benchmarks on preemptible machines and brings back numbers that can be published."""

__version__ = "0.1.0"

"""Runs the checks of `bench doctor` at the same time and collects their verdicts."""

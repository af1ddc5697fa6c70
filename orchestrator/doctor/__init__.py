"""The doctor: runs checks side by side and gathers their verdicts."""

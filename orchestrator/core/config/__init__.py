"""The configuration of a run: its model, how it is loaded, explained, and the grids it may name."""

"""The configuration of a run: its model, the grids that it may name, how it is loaded, and how mistakes are
explained."""

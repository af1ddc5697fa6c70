"""Programs that are run by hand on a GPU: tuning, stress, training, the cost of a call on the host; and the grids of
published measurements."""

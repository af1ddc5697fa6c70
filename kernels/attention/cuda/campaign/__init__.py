"""Programs that are run by hand on a GPU (tuning, fitting prices, the cost of a call on the host), and the grids of
published measurements."""

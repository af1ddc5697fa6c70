"""What is run by hand on a GPU: tuning, stress, training, what a call costs the host; and the grids of what is
published."""

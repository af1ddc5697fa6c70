"""What stands in for a cloud on a machine that somebody owns: for one run, its deadline and its results."""

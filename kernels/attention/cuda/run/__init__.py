"""One device: its driver, its kernels loaded, its counters, and the launches that are left of a plan."""

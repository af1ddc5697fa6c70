"""From CUDA source to a cubin that passed its gates, in a cache."""

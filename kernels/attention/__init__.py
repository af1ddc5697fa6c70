"""Scaled dot-product attention: the bundled kernels, how they are judged, and the baselines."""

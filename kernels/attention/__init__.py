"""Scaled dot-product attention: the bundled kernels, what they are judged by, and what they are compared with."""

"""The ways of computing the backward pass: their kernels and launches, what each would take, and which one is taken."""

"""The ways of computing the forward pass: their kernels and launches, what each would take, and which one is taken."""

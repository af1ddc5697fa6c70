"""The ways of computing the forward pass: their kernels and launches, estimates of their time, and the choice."""

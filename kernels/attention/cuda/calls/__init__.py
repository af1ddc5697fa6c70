"""Calls of users: bound to their tensors, remembered for similar calls, and visible to autograd and torch.compile."""

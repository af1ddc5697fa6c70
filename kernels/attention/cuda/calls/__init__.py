"""A call of a user's: bound to its tensors, remembered for calls like it, and seen by autograd and torch.compile."""

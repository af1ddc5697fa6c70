"""The launch plan: all decisions that are made before money is spent."""

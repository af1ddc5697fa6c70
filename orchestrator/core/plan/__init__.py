"""The launch plan: every decision that is made before money is spent."""

"""The launch plan: every decision before a cent is spent."""

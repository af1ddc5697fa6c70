"""Checks that cost nothing. Each has a function that returns a verdict, which may name the command that repairs it."""

"""Checks that cost nothing: each is data, with a function that judges it and the command that repairs it."""

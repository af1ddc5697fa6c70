"""What several tiers of tests stand on."""

SESSION = "TEST_SESSION"
"""The variable of the environment with the folder where what is compiled once in a session lies."""

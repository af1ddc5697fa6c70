"""What measurements mean: intervals, tests, verdicts. Pure functions over numbers; numpy is all they need."""

"""The public package, as a user of it has it."""

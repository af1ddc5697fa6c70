"""What can be known before a cent is spent: checks as data, each with its judgement and the command that mends it."""

"""One file per command; the only layer that prints. Nothing heavy is imported before a command needs it."""

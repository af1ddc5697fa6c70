"""`bench fleet`: one sweep on many machines. The commands are in `commands`; what they share is in `context`."""

"""The pure core: no I/O, no clock, no randomness, no cloud library, no terminal."""

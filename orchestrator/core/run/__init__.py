"""One run: its events, the fold over them, and what to do next."""

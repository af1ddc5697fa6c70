"""One run: its events, the state that follows from them, and what to do next."""

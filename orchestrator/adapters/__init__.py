"""The only place that knows Google's libraries, sockets, files and the time. Decisions are made in the core."""

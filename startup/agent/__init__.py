"""The agent: takes a bare VM through one run and reports every fact, with nothing but Python's standard library."""

"""A rehearsal of everything that we assume of Google: for cents in a real project, and for nothing in the embedded one."""

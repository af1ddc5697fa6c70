"""A rehearsal of our assumptions about Google: for cents in a real project, and for nothing in the embedded one."""

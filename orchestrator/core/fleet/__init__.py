"""What a fleet is: a sweep, its children in order, who measures which, and what it may cost. Pure."""

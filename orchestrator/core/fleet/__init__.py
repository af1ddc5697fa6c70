"""The core of fleets: the sweep, its children in order, which machine measures which child, and the cost. Pure."""

"""The workload that the tool brings along, attention: all that is known of it on this side of the machine."""

"""What can be rented: GPUs, machine types, zones, offers, prices and quotas."""

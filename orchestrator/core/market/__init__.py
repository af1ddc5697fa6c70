"""What may be rented: GPUs, machine types, zones, offers, prices and quotas."""

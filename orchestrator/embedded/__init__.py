"""A cloud on loopback: Compute Engine, Cloud Storage, metadata servers, machines and a bill, all on one machine."""

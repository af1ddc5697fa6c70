"""The bundled workload, attention: what the client knows of it. The harness on the machine has its own definitions."""

"""The bundled kernels and the harness that checks and measures them; needs the standard library, numpy and torch."""

"""The engine: bundles in, numbers and text out. Knows nothing of HTTP."""

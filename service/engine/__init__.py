"""The engine: bundles in, numbers and text out, without HTTP."""

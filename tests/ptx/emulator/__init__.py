"""An emulator of PTX on a CPU: runs what Triton emits, for tests of the kernels."""

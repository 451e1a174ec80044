"""PTX, executed on a CPU: an emulator of what Triton emits, for tests of the kernels and for those of a bundle."""

"""A cost model of the GPU kernels, from their machine code."""

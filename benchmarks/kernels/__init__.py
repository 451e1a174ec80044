"""Speed, accuracy and machine code of the GPU kernels."""

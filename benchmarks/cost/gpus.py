"""Properties of the GPUs for which the fused kernels are compiled, from data sheets and published measurements.

The cost model (`model.py`) uses these numbers. None of them was fitted to kernels of this package.

- *SMs, clocks, tensor cores, lanes, shared memory, bandwidth*: NVIDIA's white papers of GA100, GH100, AD102, Blackwell
  RTX and the L4 and B200 data sheets; lanes of each pipe: "throughput of native arithmetic instructions" in the CUDA
  C++ programming guide. Tensor cores: dense, 16-bit factors, float32 sums; GeForce runs these at half the rate of a
  data-centre part.
- *Latencies of L2 and memory*: github.com/markdewing/AI_kernels, latency/README.md, pointer chase, clocks. L4: that of
  the L40's L2 (arXiv 2606.22588: mean 279), and the RTX 4090's memory.
- *Bytes a clock and SM from L2*: A100 5,120 a clock (white paper) over 108 SMs; H100 5.5 TB/s (Chips and Cheese, 2023,
  114 SMs); RTX 4090 1,946 a clock (github.com/smallscientist1/cuda_microbenchmark). Others: assumed as the nearest.
- *`mma.sync`* reaches 62 % of the rate of `wgmma` on Hopper (arXiv 2402.13499); on B200 assumed a quarter of `tcgen05`.
- *Gap*: a kernel in a CUDA graph on an H100 takes 1.3 µs for itself (Hazy Research, "Look Ma, No Bubbles", 2025);
  assumed of all.
"""

from __future__ import annotations

from dataclasses import dataclass

LANES_OF_ISSUE = 128  # four schedulers, one instruction of a warp each per clock, since Volta
REGISTERS = 65_536
SHARED_OF_A_CTA = 1024  # used by the system


@dataclass(frozen=True)
class Gpu:
    """Properties of a GPU.

    Args:
        clock: Sustained clock in GHz (see `clock_source`).
        tensor: FLOP per clock and SM.
        mma_sync: Fraction of it that `mma.sync` (HMMA) reaches.
        fma, alu, mufu, shared_lanes: Threads per clock and SM of each pipe.
        warps, shared_bytes: Maximum per SM.
        l2_clocks, memory_clocks: Latencies.
        l2_bytes: Bytes per clock and SM.
        memory: Bytes per second.
        gap: Additional seconds per kernel in a graph.
    """

    name: str
    architecture: int
    sms: int
    clock: float
    clock_source: str
    tensor: float
    fma: int
    alu: int
    warps: int
    shared_bytes: int
    l2_clocks: float
    memory_clocks: float
    l2_bytes: float
    memory: float
    mma_sync: float = 1.0
    mufu: int = 16
    shared_lanes: int = 32
    gap: float = 1.3e-6

    @property
    def hertz(self) -> float:
        return self.clock * 1e9

    def resident(self, registers: int, shared_bytes: int, warps: int) -> int:
        """Return the number of CTAs of a kernel that an SM holds at a time."""
        # Registers are allocated to warps in units of 256.
        of_a_warp = -(-registers * 32 // 256) * 256
        found = min(
            self.warps // warps,
            REGISTERS // of_a_warp // warps,
            self.shared_bytes // (shared_bytes + SHARED_OF_A_CTA),
        )
        if found < 1:
            raise ValueError(f"{self.name} holds no CTA of {warps} warps, {registers} registers, {shared_bytes} bytes")
        return found


BOOST = "boost clock of the data sheet; attention kernels stay below its power"
GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("A100", 80, 108, 1.41, BOOST, 2048, 64, 64, 64, 164 * 1024, 210, 550, 47.0, 2.039e12),
        Gpu(
            "L4", 89, 58, 1.0, "assumed: 72 W hold half of the boost clock of 2.04", 1024, 128, 64, 48, 100 * 1024,
            279, 636, 15.0, 3.0e11,
        ),
        Gpu("RTX 4090", 89, 128, 2.52, BOOST, 512, 128, 64, 48, 100 * 1024, 296, 636, 15.2, 1.008e12),
        Gpu(
            "H100", 90, 132, 1.7, "SXM; 700 W hold 1.4 to 1.755 under matrix products, assumed for attention", 4096,
            128, 64, 64, 228 * 1024, 291, 700, 28.0, 3.35e12, mma_sync=0.62,
        ),
        Gpu(
            "B200", 100, 148, 1.85, "that of the data sheet's 2.25 PFLOP/s", 8192, 128, 64, 64, 228 * 1024,
            295, 860, 28.0, 8.0e12, mma_sync=0.25,
        ),
        Gpu("RTX 5090", 120, 170, 2.407, BOOST, 512, 128, 128, 48, 100 * 1024, 360, 936, 15.0, 1.792e12),
    )
}  # fmt: skip
# Of all of them.
ARCHITECTURES = tuple(sorted({gpu.architecture for gpu in GPUS.values()}))

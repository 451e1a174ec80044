"""Two toy kernels with a known main loop, in the form in which `rfa.benchmarks.kernels.aot` takes kernels."""

# mypy: disable-error-code="no-untyped-def"

import torch
import triton
import triton.language as tl

from rfa.benchmarks.kernels.aot_compile import KernelCase
from rfa.model.kernel_launches import recorded_launches

NAMES = ("toy", "toy spilling")


@triton.jit
def toy(p_q, p_k, p_out, length, W: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, SPILLING: tl.constexpr):
    """Row sums of exp2(q k^T): two products a turn would be attention, this is one of them and one MUFU a score."""
    o_m = tl.arange(0, BM)
    o_n = tl.arange(0, BN)
    o_w = tl.arange(0, W)
    b_q = tl.load(p_q + o_m[:, None] * W + o_w)  # [BM, W]
    b_sum = tl.zeros([BM], tl.float32)  # [BM]
    b_kept = tl.zeros([BM, BN], tl.float32)  # [BM, BN]
    for start in range(0, length, BN):
        b_k = tl.load(p_k + (start + o_n)[None, :] * W + o_w[:, None])  # [W, BN]
        b_p = tl.exp2(tl.dot(b_q, b_k))  # [BM, BN]
        b_sum += tl.sum(b_p, 1)
        if SPILLING:
            b_kept = b_kept * b_p + b_p
    tl.store(p_out + o_m, b_sum + tl.sum(b_kept, 1))


def build(name: str, architecture: int) -> KernelCase:
    if name not in NAMES:
        raise ValueError(f"no kernel {name!r}")
    q, k, out = torch.zeros(128, 64).bfloat16(), torch.zeros(1024, 64).bfloat16(), torch.zeros(128)
    spilling = name == "toy spilling"
    with recorded_launches(architecture) as launches:
        toy[(1,)](q, k, out, 1024, W=64, BM=128, BN=64, SPILLING=spilling, num_warps=1 if spilling else 8, num_stages=2)
    return KernelCase(launches[0], block=(128, 64), scores=128 * 64, work_per_score=64, depth=64)

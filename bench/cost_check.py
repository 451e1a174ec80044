"""How far off the model of cost is, on a kernel whose speed is known: plain softmax attention in Triton.

The kernel below has the algorithm, the loops and the blocks of Triton's tutorial on fused attention (online maximum,
no warp specialisation, copies by cp.async), whose speed others measured after choosing among such blocks; the model
takes the best of the same. On an H100, float16, 16,384 tokens, 2,048 reals: the figures of FlashAttention-3
(flash3_fp16_fwd.png in github.com/Dao-AILab/flash-attention). Where the model is off here it is not to be believed
further there.
"""

# Kernels are typed by their compiler.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import triton
import triton.language as tl

from rfa.bench.cost_calls import Kernel, Shape, SourceLoop
from rfa.bench.cost_estimate import estimate
from rfa.bench.cost_machine import Machine
from rfa.bench.gpus import GPUS

GPU = "H100"
# (reals, causal) → {tokens: TFLOP/s}
PUBLISHED = {
    (64, True): {512: 152, 16_384: 363},
    (64, False): {512: 340, 16_384: 403},
    (128, True): {512: 146, 16_384: 378},
    (128, False): {512: 323, 16_384: 395},
}
BLOCKS = ((64, 64, 4, 3), (128, 64, 4, 3), (128, 64, 8, 3), (128, 128, 8, 3))


@triton.jit
def _turn(
    state, b_q, p_k, p_v, o_row, start, scale, W: tl.constexpr, BN: tl.constexpr, MASKED: tl.constexpr
):  # fmt: skip
    """A block of keys under the running maximum."""
    b_out, b_sum, b_top = state
    o_key = start + tl.arange(0, BN)
    o_w = tl.arange(0, W)
    b_k = tl.load(p_k + o_key[:, None] * W + o_w[None, :])  # [BN, W]
    b_logit = tl.dot(b_q, tl.trans(b_k)) * scale  # [BM, BN]
    if MASKED:
        b_logit = tl.where(o_key[None, :] <= o_row[:, None], b_logit, float("-inf"))
    b_new = tl.maximum(b_top, tl.max(b_logit, 1))  # [BM]
    b_weight = tl.exp2(b_logit - b_new[:, None])  # [BM, BN]
    b_rescale = tl.exp2(b_top - b_new)  # [BM]
    b_v = tl.load(p_v + o_key[:, None] * W + o_w[None, :])  # [BN, W]
    b_out = tl.dot(b_weight.to(b_v.dtype), b_v, b_out * b_rescale[:, None])  # [BM, W]
    return b_out, b_sum * b_rescale + tl.sum(b_weight, 1), b_new


@triton.jit
def plain_kernel(
    p_q, p_k, p_v, p_out, length, scale, W: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, IS_CAUSAL: tl.constexpr
):  # fmt: skip
    """Softmax attention of a block of queries of one head."""
    o_row = tl.program_id(0) * BM + tl.arange(0, BM)
    o_w = tl.arange(0, W)
    own = tl.program_id(1).to(tl.int64) * length * W
    b_q = tl.load(p_q + own + o_row[:, None] * W + o_w[None, :])  # [BM, W]
    state = tl.zeros([BM, W], tl.float32), tl.zeros([BM], tl.float32), tl.full([BM], float("-inf"), tl.float32)
    last = tl.program_id(0) * BM if IS_CAUSAL else length
    for start in range(0, last, BN):
        state = _turn(state, b_q, p_k + own, p_v + own, o_row, start, scale, W, BN, False)
    if IS_CAUSAL:
        for start in range(last, last + BM, BN):
            state = _turn(state, b_q, p_k + own, p_v + own, o_row, start, scale, W, BN, True)
    b_out, b_sum, _ = state
    tl.store(p_out + own + o_row[:, None] * W + o_w[None, :], (b_out / b_sum[:, None]).to(p_out.dtype.element_ty))


def entries() -> list[str]:
    """What is compiled."""
    return [
        f"plain {width} {int(is_causal)} {'-'.join(map(str, blocks))}@{GPUS[GPU].architecture}"
        for width, is_causal in PUBLISHED
        for blocks in BLOCKS
    ]


def launches_of(call: str, architecture: int) -> list[Any]:
    """The launch of "plain 64 1 128-64-8-3"."""
    import torch

    from rfa.model.kernel_launches import recorded_launches

    _, width, is_causal, blocks = call.split()
    bm, bn, warps, stages = map(int, blocks.split("-"))
    q, k, v, out = (torch.zeros(2, 1024, int(width), dtype=torch.float16) for _ in range(4))
    with recorded_launches(architecture) as launches:
        plain_kernel[(1024 // bm, 2)](
            q, k, v, out, 1024, 0.1, W=int(width), BM=bm, BN=bn, IS_CAUSAL=bool(int(is_causal)), num_warps=warps,
            num_stages=stages,
        )  # fmt: skip
    return launches


def source_of(constants: Mapping[str, int], shape: Shape, is_causal: bool) -> Kernel:
    """Loops and turns of the kernel."""
    bm, bn, w = constants["BM"], constants["BN"], shape.width
    loop = SourceLoop("main", bm * bn, 2 * w, 0.5, 4 * bn * w)
    blocks = range(shape.length // bm)
    turns = [(block * bm / bn, bm / bn) if is_causal else (shape.length / bn,) for block in blocks]
    loops = (loop, SourceLoop("masked", bm * bn, 2 * w, 0.5, 4 * bn * w)) if is_causal else (loop,)
    return Kernel(loops, turns * (shape.heads * shape.batch), 1)


def checked(machines: Mapping[str, Sequence[Machine]]) -> list[Mapping[str, Any]]:
    """A row for every published figure: the model's best blocks, and its speed over the published one."""
    gpu, rows = GPUS[GPU], []
    for (width, is_causal), known in PUBLISHED.items():
        for length, published in known.items():
            shape = Shape(width, length)
            flop = shape.flop("forward") * (1 if is_causal else 2)
            found = []
            for blocks in BLOCKS:
                entry = f"plain {width} {int(is_causal)} {'-'.join(map(str, blocks))}@{gpu.architecture}"
                (machine,) = machines[entry]
                seconds, _ = estimate(machine, source_of(machine.constants, shape, is_causal), gpu)
                found.append((seconds.predicted + gpu.gap, seconds, blocks))
            _, best, blocks = min(found, key=lambda one: one[0])
            rows.append(
                {
                    "width": width,
                    "length": length,
                    "is_causal": is_causal,
                    "launch": list(blocks),
                    "published": published,
                    **{
                        kind: round(flop / (getattr(best, kind) + gpu.gap) / 1e12)
                        for kind in ("bound", "predicted", "serial")
                    },
                }
            )
    return rows

"""The cost model compared with published speeds of softmax attention.

The kernel is that of Triton's tutorial on fused attention, with its best block sizes. Published, float16: H100 2024:
flash3_fp16_fwd.png in github.com/Dao-AILab/flash-attention; H100 2025: facebookexperimental/triton pull request 205;
A100: Dao-AILab/flash-attention issue 307.
"""

# Triton kernels have no type annotations.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import triton
import triton.language as tl

from rfa.benchmarks.cost.calls import Kernel, Shape, SourceLoop
from rfa.benchmarks.cost.estimate import estimate
from rfa.benchmarks.cost.gpus import GPUS
from rfa.benchmarks.cost.machine import Call
from rfa.benchmarks.cost.model import KINDS


@dataclass(frozen=True)
class Published:
    """A published speed in TFLOP/s."""

    gpu: str
    year: int
    width: int
    length: int
    is_causal: bool
    tflops: float


PUBLISHED = (
    Published("H100", 2024, 64, 512, True, 152),
    Published("H100", 2024, 64, 16_384, True, 363),
    Published("H100", 2024, 64, 512, False, 340),
    Published("H100", 2024, 64, 16_384, False, 403),
    Published("H100", 2024, 128, 512, True, 146),
    Published("H100", 2024, 128, 16_384, True, 378),
    Published("H100", 2024, 128, 512, False, 323),
    Published("H100", 2024, 128, 16_384, False, 395),
    Published("H100", 2025, 128, 16_384, False, 487),
    Published("A100", 2024, 64, 16_384, True, 187),
    Published("A100", 2024, 128, 16_384, True, 188),
)
BLOCKS = ((64, 64, 4, 3), (128, 64, 4, 3), (128, 64, 8, 3), (128, 128, 8, 3))


def blocks_of(is_causal: bool) -> list[tuple[int, int, int, int]]:
    """Yield BM, BN, warps, stages. Square blocks have one iteration on the diagonal, which is not a loop."""
    return [blocks for blocks in BLOCKS if not is_causal or blocks[0] > blocks[1]]


@triton.jit
def _turn(
    state, b_q, p_k, p_v, o_row, start, scale, W: tl.constexpr, BN: tl.constexpr, MASKED: tl.constexpr
):  # fmt: skip
    """Process a block of keys with a running maximum."""
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
    """Compute softmax attention of a block of queries of one head."""
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


def entry_of(speed: Published, blocks: Sequence[int]) -> str:
    """Return the entry to compile."""
    shape = f"{speed.width} {int(speed.is_causal)} {'-'.join(map(str, blocks))}"
    return f"plain {shape}@{GPUS[speed.gpu].architecture}"


def entries() -> list[str]:
    """Return all entries to compile."""
    found = [entry_of(speed, blocks) for speed in PUBLISHED for blocks in blocks_of(speed.is_causal)]
    return list(dict.fromkeys(found))


def launches_of(call: str, architecture: int) -> list[Any]:
    """Return the launch of "plain 64 1 128-64-8-3"."""
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
    """Return loops and iterations of the kernel."""
    bm, bn, w = constants["BM"], constants["BN"], shape.width
    loop = SourceLoop("main", bm * bn, 2 * w, 4 * bn * w)
    blocks = range(shape.length // bm)
    turns = [(block * bm / bn, bm / bn) if is_causal else (shape.length / bn,) for block in blocks]
    loops = (loop, SourceLoop("masked", bm * bn, 2 * w, 4 * bn * w)) if is_causal else (loop,)
    return Kernel(loops, turns * (shape.heads * shape.batch), 1)


def checked(calls: Mapping[str, Call]) -> list[dict[str, Any]]:
    """Return every published figure whose blocks were all compiled, with the best predicted TFLOP/s."""
    rows = []
    for speed in PUBLISHED:
        every = {blocks: calls.get(entry_of(speed, blocks)) for blocks in blocks_of(speed.is_causal)}
        if all(every.values()):
            shape = Shape(speed.width, speed.length)
            flop = shape.flop("forward") * (1 if speed.is_causal else 2)
            speeds = {}
            for blocks, call in every.items():
                (machine,) = call.kernels if call else ()
                source = source_of(machine.constants, shape, speed.is_causal)
                seconds, _ = estimate(machine, source, GPUS[speed.gpu])
                speeds[blocks] = {kind: round(flop / getattr(seconds, kind) / 1e12) for kind in KINDS}
            best = max(speeds, key=lambda blocks: speeds[blocks]["predicted"])
            rows.append({**asdict(speed), "launch": list(best), **speeds[best]})
    return rows

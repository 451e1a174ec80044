"""The shipped shapes of the fused kernels, each with the launch of its launcher.

Attention: heads of 64 and 128 reals, bfloat16 and float16, forward with and without precision, and both kernels of the
backward pass; in bfloat16 also with the gradient of mu. Slots: scan, gradient and step, at the shapes of the packaged
training configs.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

import torch
from torch import Tensor

from rfa.benchmarks.kernels.aot_compile import KernelCase
from rfa.model.kernel_launches import KernelLaunch, recorded_launches
from rfa.model.recurrence.slots_reference import SlotInputs, SlotParameters
from rfa.training.language_config import CONFIGS

BATCH, LENGTH, HEADS = 2, 1024, 8
WIDTHS = (64, 128)
DTYPES = {"bf16": "bfloat16", "fp16": "float16"}
Pass = Literal[
    "forward", "backward rows", "backward columns",
    "slot scan", "slot weights", "slot values", "slot scan gradient", "slot step",
]  # fmt: skip
SLOT_PASSES: tuple[Pass, ...] = ("slot scan", "slot weights", "slot values", "slot scan gradient", "slot step")
# The kernel of each pass and its products: those that sum over the W reals of a pair, and those that sum over the block
# of the turn. Both need W multiply-accumulates per score.
KERNELS: dict[Pass, tuple[str, int, int]] = {
    "forward": ("_forward_kernel", 1, 1),
    "backward rows": ("_rows_kernel", 2, 1),
    "backward columns": ("_columns_kernel", 2, 2),
    "slot scan": ("scan_kernel", 0, 0),
    "slot weights": ("weights_kernel", 0, 0),
    "slot values": ("values_kernel", 0, 0),
    "slot scan gradient": ("scan_gradient_kernel", 0, 0),
    "slot step": ("slots_kernel", 0, 0),
}


@dataclass(frozen=True)
class KernelShape:
    """width: reals per head. dtype: that of the inputs. learns_decay: mu has a gradient. slots: slots per head."""

    pass_name: Pass
    width: int
    dtype: str = "float32"
    with_precision: bool = False
    learns_decay: bool = False
    slots: int = 0


def _attention_shapes() -> dict[str, KernelShape]:
    passes: tuple[Pass, ...] = ("forward", "backward rows", "backward columns")
    found = {}
    for pass_name, width, (short, dtype), with_precision in product(passes, WIDTHS, DTYPES.items(), (False, True)):
        name = f"{pass_name} {width} {short}" + (" precision" if with_precision else "")
        found[name] = KernelShape(pass_name, width, dtype, with_precision)
    return found


def _decay_shapes() -> dict[str, KernelShape]:
    return {
        f"{name} decay": replace(shape, learns_decay=True)
        for name, shape in _attention_shapes().items()
        if shape.dtype == "bfloat16" and shape.pass_name == "backward rows"
    }


def _slot_shapes() -> dict[str, KernelShape]:
    found = {}
    for path in sorted(CONFIGS.glob("*.json")):
        model = json.loads(path.read_text()).get("model", {})
        if model.get("mixer") == "rfa":
            slots, width = model["n_slots"], 2 * model["head_dim"]
            for pass_name in SLOT_PASSES:
                found[f"{pass_name} {slots}×{width}"] = KernelShape(pass_name, width, slots=slots)
    return found


SHAPES = _attention_shapes() | _decay_shapes() | _slot_shapes()
NAMES = tuple(SHAPES)


def build(name: str, architecture: int) -> KernelCase:
    """Return the kernel of a shape on an architecture (80, 90) with its launch there."""
    if name not in SHAPES:
        raise ValueError(f"no shape {name!r}; known are {', '.join(NAMES)}")
    shape = SHAPES[name]
    if shape.slots:
        return _slots(shape, architecture)
    return _backward(shape, architecture) if "backward" in shape.pass_name else _forward(shape, architecture)


def _find(launches: list[KernelLaunch], shape: KernelShape) -> KernelLaunch:
    requested = KERNELS[shape.pass_name][0]
    found = [launch for launch in launches if launch.function.__name__ == requested]
    if len(found) != 1:
        names = [launch.function.__name__ for launch in launches]
        raise ValueError(f"{shape.pass_name} should launch {requested} once, it launched {names}")
    return found[0]


def _inputs(shape: KernelShape) -> tuple[list[Tensor], Tensor]:
    """Return q, k, v and heads `[H, 6]`. Only their shapes, dtypes and strides matter."""
    dtype = getattr(torch, shape.dtype)
    rows = [torch.zeros(BATCH, LENGTH, HEADS, shape.width, dtype=dtype) for _ in range(3)]
    return rows, torch.ones(HEADS, 6)


def _attention_case(launches: list[KernelLaunch], shape: KernelShape) -> KernelCase:
    found = _find(launches, shape)
    names = list(found.signature)
    block_m, block_n = (int(found.constexprs[(names.index(name),)]) for name in ("BM", "BN"))
    _, over_reals, over_block = KERNELS[shape.pass_name]
    turned = block_m if shape.pass_name == "backward columns" else block_n
    depth = over_reals * shape.width + over_block * turned
    return KernelCase(found, (block_m, block_n), block_m * block_n, (over_reals + over_block) * shape.width, depth)


def _forward(shape: KernelShape, architecture: int) -> KernelCase:
    from rfa.model.attention import triton_forward
    from rfa.model.attention.call import AttentionCall

    (q, k, v), heads = _inputs(shape)
    with recorded_launches(architecture) as launches:
        call = AttentionCall(q, k, v, heads, with_precision=shape.with_precision)
        triton_forward.forward(call)
    return _attention_case(launches, shape)


def _backward(shape: KernelShape, architecture: int) -> KernelCase:
    from rfa.model.attention import triton_backward
    from rfa.model.attention.call import AttentionCall

    (q, k, v), heads = _inputs(shape)
    statistic = torch.zeros(BATCH, LENGTH, HEADS)
    grad_precision = statistic if shape.with_precision else None
    with recorded_launches(architecture) as launches:
        triton_backward.backward(
            triton_backward.OutputGradients(q, statistic, grad_precision),
            AttentionCall(q, k, v, heads, needs_decay=shape.learns_decay),
            q,
            statistic,
        )
    return _attention_case(launches, shape)


def _step(shape: KernelShape, means: torch.Tensor, precisions: torch.Tensor, parameters: SlotParameters) -> None:
    """Return a decoder step of the last layer, with gates of its outputs, which uses all of the kernel."""
    from rfa.model.decoder_triton import Gates, Outcome, PoolRows, Turned, step_slots

    slots, width, rows = shape.slots, shape.width, torch.arange(BATCH)
    turn = Turned(*(torch.ones(BATCH, HEADS, width // 2) for _ in range(2)))
    gates = Gates(torch.ones(2 * HEADS * slots), torch.ones(HEADS), torch.ones(HEADS, slots), torch.ones(HEADS))
    outcome = Outcome.empty(BATCH, 1, HEADS, width, rows.device)
    joint = torch.ones(BATCH, HEADS * (3 * width + 2 * slots + 1))
    step_slots(
        joint, turn, gates, parameters, PoolRows(means, precisions, rows, rows), outcome,
        noise=outcome.latent, index=0, inner=1, innovation="key", dtype=torch.bfloat16,
    )  # fmt: skip


def _slots(shape: KernelShape, architecture: int) -> KernelCase:
    """Return the scan of a layer.

    A score is one value of the means in a program at one token: of S slots of 4D reals, or of some slots of the 2D
    reals of the keys in the scan and of some reals of the values. It is a weight if the program holds no means.
    """
    from rfa.model.recurrence.triton import slot_scan_triton  # registers the operators

    slots, width = shape.slots, shape.width
    means, precisions = torch.zeros(BATCH, HEADS, slots, 2 * width), torch.ones(BATCH, HEADS, slots)
    parameters = SlotParameters(torch.ones(HEADS, slots), *(torch.ones(HEADS) for _ in range(7)))
    with recorded_launches(architecture) as launches:
        if shape.pass_name == "slot step":
            _step(shape, means, precisions, parameters)
        else:
            rows = [torch.zeros(BATCH, LENGTH, HEADS, width) for _ in range(3)]
            tokens = SlotInputs(*rows, *(torch.ones(BATCH, LENGTH, HEADS, slots) for _ in range(2)))
            means.requires_grad_(shape.pass_name == "slot scan gradient")
            readout, *_ = slot_scan_triton(tokens, means, precisions, parameters)
            if means.requires_grad:
                readout.out.sum().backward()
    found = _find(launches, shape)
    names = list(found.signature)

    def size(name: str) -> int:
        return int(found.constexprs[(names.index(name),)])

    held = slots, 2 * width
    if shape.pass_name == "slot scan":
        held = size("BS"), width
    elif shape.pass_name in ("slot weights", "slot values"):
        held = size("BS"), size("BLOCK" if shape.pass_name == "slot weights" else "BW")
    return KernelCase(found, held, held[0] * held[1], 0)

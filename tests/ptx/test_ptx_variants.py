"""How often Triton compiles a kernel: lengths make no variant of one, for a server would wait seconds for each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from rfa.model.attention.call import AttentionCall
from rfa.model.attention.pages import PAGE_KEYS, KeyPages, PagedHeads, Pieces, paged_attention
from rfa.model.attention.triton import fused_rotation
from rfa.model.attention.triton_backward import OutputGradients, backward
from rfa.model.attention.triton_forward import forward
from rfa.model.recurrence.slots_reference import SlotOptions
from rfa.model.recurrence.triton import slot_scan_triton
from tests.model import test_slots_triton as slots
from tests.ptx.launches import SCAN, Compiler, Emulator, emulated, requested

if torch.cuda.is_available():
    pytest.skip("the kernels are defined for the GPU that is here", allow_module_level=True)

# One; divisible by 16 and not; in blocks of 64 and 128, numbers of blocks and distances of all these kinds too.
LENGTHS = (1, 16, 17, 900, 1024, 1025, 2048)
BATCH, HEADS, WIDTH = 2, 3, 64


@dataclass
class Variants(Emulator):
    """Instead of playing launches it counts what Triton would have compiled for them; nothing is computed."""

    found: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    def launch(self, kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        request, _ = requested(kernel, self.architecture, grid, *args, **kwargs)
        self.found[f"{request.module.rpartition('.')[2]}.{request.name}"].add(repr(request))


def counted(launch: Callable[[int], object]) -> dict[str, int]:
    """Variants of each kernel that a launch of every length takes."""
    variants = Variants(Compiler(), 90)
    with emulated(variants), torch.no_grad():
        for length in LENGTHS:
            launch(length)
    return {name: len(found) for name, found in variants.found.items()}


def starts_of(length: int) -> Tensor:
    """Of two packed sequences."""
    return torch.tensor([0, length // 2, length], dtype=torch.int32)


def attend_and_differentiate(queries: int, keys: int, dtype: torch.dtype, has_stamps: bool, is_packed: bool) -> None:
    """Both launchers, on numbers that nobody reads."""
    batch = 1 if is_packed else BATCH
    q, k, v = (torch.zeros(batch, n, HEADS, WIDTH, dtype=dtype) for n in (queries, keys, keys))
    heads, statistic = torch.ones(HEADS, 6), torch.zeros(batch, queries, HEADS)
    own, all_keys = (torch.zeros(batch, n, 2) if has_stamps else None for n in (queries, keys))
    first, first_key = (starts_of(n) if is_packed else None for n in (queries, keys))
    call = AttentionCall(q, k, v, heads, own, all_keys, first, first_key, queries, keys, with_precision=False)
    forward(call)
    backward(OutputGradients(q, statistic, None), call, q, statistic)


REGULAR = {
    "triton_columns._columns_kernel",
    "triton_forward_kernel._forward_kernel",
    "triton_backward_tokens._describe_keys",
    "triton_backward_tokens._describe_queries",
    "triton_backward_rows._rows_kernel",
    "triton_backward_columns._columns_kernel",
}


@pytest.mark.parametrize("prefix", [0, 128], ids="prefix {}".format)
@pytest.mark.parametrize(
    ("dtype", "has_stamps", "is_packed", "others"),
    [
        (torch.bfloat16, False, False, {"triton_distant.table_kernel"}),
        (torch.bfloat16, True, False, set()),
        (torch.bfloat16, False, True, {"triton_distant.table_kernel"}),
        (torch.float32, False, False, {"triton_backward_tokens._normalise_rows"}),
    ],
    ids=["regular", "irregular", "packed", "float32"],
)
def test_lengths_make_no_variants_of_attention(
    dtype: torch.dtype, has_stamps: bool, is_packed: bool, others: set[str], prefix: int
) -> None:
    found = counted(lambda n: attend_and_differentiate(n, prefix + n, dtype, has_stamps, is_packed))
    assert found == dict.fromkeys(REGULAR | others, 1)


def test_lengths_make_no_variants_of_attention_to_pages() -> None:
    def attend(length: int) -> None:
        q, keys = torch.zeros(length, HEADS, WIDTH), torch.zeros(4096, HEADS, WIDTH)
        table = torch.zeros(2, 1 + length // PAGE_KEYS, dtype=torch.int32)
        pieces = Pieces(starts_of(length), starts_of(length), KeyPages(table, length, length), length)
        q, keys = q.bfloat16(), keys.bfloat16()
        heads = PagedHeads(torch.ones(HEADS, 6), WIDTH, q.dtype, "student_t", with_precision=True)
        paged_attention(q, keys, keys, heads, pieces)

    names = "triton_columns._columns_kernel", "triton_forward_kernel._forward_kernel", "triton_distant.table_kernel"
    assert counted(attend) == dict.fromkeys(names, 1)


def test_lengths_make_no_variants_of_the_rotation() -> None:
    def turn(length: int) -> None:
        fused_rotation(torch.zeros(BATCH, length, HEADS, WIDTH), phase=torch.zeros(length, HEADS, WIDTH // 2))

    assert counted(turn) == {"triton_rotation._rotation_kernel": 1}


@pytest.mark.parametrize("has_lengths", [False, True])
def test_lengths_make_no_variants_of_the_slots(has_lengths: bool) -> None:
    def scan(length: int) -> None:
        tokens, means, precisions, parameters = slots.inputs(BATCH, length, HEADS, 4, 8)
        own = torch.tensor([length, 1]) if has_lengths else None
        slot_scan_triton(tokens, means, precisions, parameters, SlotOptions(lengths=own))

    assert counted(scan) == dict.fromkeys((f"triton_forward.{name}" for name in SCAN), 1)

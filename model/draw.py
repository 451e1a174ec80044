"""Sample the next tokens on the device of the logits. `sampling.drawn_tokens` is the version for the host.

The order of tokens, ties and top_k are exact and equal those on the host, which supplies the random numbers.
Exponentials are float32, so the boundaries between the intervals of tokens may differ from those of the host in the
last digits. Exponentials are summed as integers in units of 2^-46 or less, so the sums depend neither on the order of
the terms nor on the batch.

GPUs use the kernels in `draw_triton`, and other devices the reference implementation in this module. Both can be
captured in a CUDA graph, because they do not synchronise and have no data-dependent shapes.
"""

from __future__ import annotations

import functools
import importlib.util
from typing import NamedTuple

import torch
from torch import Tensor

from rfa.model.language import StepOutput
from rfa.model.recurrence.slots import is_on_gpu

# Number of bits of the sum of all weights of a row.
SUM_BITS = 62
# Additional float32 outputs per row. The last two are 1 if true and 0 otherwise.
NUMBERS = ("top", "chosen", "is_finite", "slots_finite")


class Distribution(NamedTuple):
    """Sampling parameters of B rows (see `sampling.filtered_probabilities`).

    Greedy rows have last_place 0 and uniform 0, which selects the first of the most probable tokens.

    Args:
        top_p: Probability mass of nucleus sampling, `[B]` float64. Infinity disables it.
        uniform: Random numbers in [0, 1), `[B]` float64.
        last_place: Rank of the last token that top_k retains, counted from 0, `[B]` int64.
        temperature: Temperature, positive and not subnormal, `[B]` float32.
        calibration: Temperature of the calibrated confidence, `[1]` float32.
    """

    top_p: Tensor
    uniform: Tensor
    last_place: Tensor
    temperature: Tensor
    calibration: Tensor


class Drawn(NamedTuple):
    """Output buffers of `draw`.

    Args:
        tokens: Sampled tokens, `[B]` int64.
        sums: Σ exp(logit - largest) at temperature 1 and at the calibration temperature, in units of 1 / `fixed_point`,
            `[2, B]` int64.
        numbers: Values of NUMBERS, `[len(NUMBERS), B]` float32.
    """

    tokens: Tensor
    sums: Tensor
    numbers: Tensor

    @classmethod
    def empty(cls, rows: int, device: torch.device) -> Drawn:
        """Allocate uninitialised buffers for the results."""
        tokens, sums = (torch.empty(shape, dtype=torch.int64, device=device) for shape in ((rows,), (2, rows)))
        return cls(tokens, sums, torch.empty((len(NUMBERS), rows), device=device))


class Ranked(NamedTuple):
    """Logits `[B, V]` sorted in descending order, and their tokens. Equal logits are sorted by token."""

    logits: Tensor
    tokens: Tensor


def ranked(logits: Tensor) -> Ranked:
    """Return the logits of each row in descending order, and their tokens."""
    return Ranked(*logits.sort(dim=-1, descending=True, stable=True))


def token_bits(vocabulary: int) -> int:
    """Return the number of bits that are needed to represent a token id."""
    return (vocabulary - 1).bit_length()


def fixed_point(vocabulary: int) -> float:
    """Return the power of two that converts weights of at most 1 to integers such that the sum of a row stays below
    2^62."""
    return 2.0 ** (SUM_BITS - token_bits(vocabulary))


def integer_weights(exponents: Tensor) -> Tensor:
    """Return the exponentials of `exponents` `[..., V]` <= 0 as int64, in units of 1 / `fixed_point`."""
    return exponents.exp().mul_(fixed_point(exponents.shape[-1])).long()


def draw(output: StepOutput, slots_finite: Tensor, given: Distribution, out: Drawn, *, is_filtered: bool) -> None:
    """Sample the next tokens of B rows, and write the results to `out`.

    Args:
        output: Output of the step.
        slots_finite: 1 if the state of a row is finite and 0 otherwise, `[B]` float32.
        given: Sampling parameters.
        out: Buffers that receive the results.
        is_filtered: Whether top_p or top_k excludes tokens of any row.
    """
    if is_on_gpu(output.logits) and _has_triton():
        from rfa.model.draw_triton import draw_by_kernel

        draw_by_kernel(output, slots_finite, given, out, is_filtered=is_filtered)
    else:
        draw_by_torch(output, slots_finite, given, out)


def draw_by_torch(output: StepOutput, slots_finite: Tensor, given: Distribution, out: Drawn) -> None:
    """Sample the next tokens with torch operations. This is the reference implementation of `draw`."""
    logits, rows = output.logits, ranked(output.logits)
    _draw_tokens(rows, given, out.tokens)
    top = rows.logits[:, :1]
    exponents = torch.stack([logits - top, logits / given.calibration - top / given.calibration])
    torch.sum(integer_weights(exponents), dim=-1, out=out.sums)
    outputs = torch.cat([logits, output.log_precision[:, None], output.latent.flatten(1)], dim=1)
    chosen = logits.gather(1, out.tokens[:, None])
    numbers = [top[:, 0], chosen[:, 0], outputs.isfinite().all(1).float(), slots_finite]
    torch.stack(numbers, out=out.numbers)


def _draw_tokens(rows: Ranked, given: Distribution, out: Tensor) -> None:
    """Write the tokens whose intervals contain the uniform random numbers to `out`, `[B]`."""
    exponents = (rows.logits - rows.logits[:, :1]).div_(given.temperature[:, None])
    weights = integer_weights(exponents).mul_(exponents >= exponents.gather(1, given.last_place[:, None]))
    total = weights.cumsum(1)
    weights.mul_(total - weights < total[:, -1:] * given.top_p[:, None])
    # The intervals are in the order of token ids.
    total = weights.new_empty(weights.shape).scatter_(1, rows.tokens, weights).cumsum(1)
    # The largest uniform number is 1 - 2^-53. Its product with a number rounds to less than that number.
    marks = (total[:, -1:] * given.uniform[:, None]).long()
    found = torch.searchsorted(total, marks, right=True)
    # Only for rows with NaN, the index may be out of range.
    torch.clamp(found[:, 0], max=weights.shape[1] - 1, out=out)


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None

"""The next tokens of a batch, chosen on the device that its logits are on: what `sampling.drawn_tokens` does on a host.

The order of tokens, ties, and which of them are the k best are those of the host, which are exact there and here, and
so are the random numbers, which come from it. Exponentials are float32; a device's differ from a processor's in their
last digits, which moves the bounds between tokens by as little. They are summed as integers, in units of 2^-46 and
less: sums that are the same in any order, so that a row is the same in a batch of any size, and that never fall from
one token to the next, as sums of floats in a tree do.

On a GPU these are kernels (`draw_triton`); elsewhere, and without Triton, what stands here, the reference.
Neither waits for the device or depends on what it computes in its shape: both can be captured in a CUDA graph.
"""

from __future__ import annotations

import functools
import importlib.util
from typing import NamedTuple

import torch
from torch import Tensor

from rfa.model.language import StepOutput
from rfa.model.recurrence.slots import is_on_gpu

# Of the sum of all weights of a row.
SUM_BITS = 62
# What is told of each row beside its token and its sums, in float32; of the flags 1 is yes.
NUMBERS = ("top", "chosen", "is_finite", "slots_finite")


class Distribution(NamedTuple):
    """What B rows are drawn from, and by which uniforms: `sampling.filtered_probabilities`. A row that is not drawn
    takes the best of the first place with the uniform 0, which is the first of the most probable tokens.

    Args:
        top_p: `[B]` float64, infinite where everything is kept.
        uniform: `[B]` float64, in [0, 1).
        last_place: `[B]` int64, of the k best, counted from 0.
        temperature: `[B]` float32, above 0 and not subnormal.
        calibration: `[1]` float32, the temperature at which confidence is calibrated.
    """

    top_p: Tensor
    uniform: Tensor
    last_place: Tensor
    temperature: Tensor
    calibration: Tensor


class Drawn(NamedTuple):
    """Where what is drawn is written.

    Args:
        tokens: `[B]` int64.
        sums: `[2, B]` int64, of the exponentials of the logits less the largest, in units of 1 / `fixed_point`: as they
            are, and at the calibration's temperature.
        numbers: `[len(NUMBERS), B]` float32.
    """

    tokens: Tensor
    sums: Tensor
    numbers: Tensor

    @classmethod
    def empty(cls, rows: int, device: torch.device) -> Drawn:
        """Unwritten."""
        tokens, sums = (torch.empty(shape, dtype=torch.int64, device=device) for shape in ((rows,), (2, rows)))
        return cls(tokens, sums, torch.empty((len(NUMBERS), rows), device=device))


class Ranked(NamedTuple):
    """Logits and their tokens `[B, V]`, best first, ties by token."""

    logits: Tensor
    tokens: Tensor


def ranked(logits: Tensor) -> Ranked:
    """The order of the tokens of each row."""
    return Ranked(*logits.sort(dim=-1, descending=True, stable=True))


def token_bits(vocabulary: int) -> int:
    """Of the number of a token."""
    return (vocabulary - 1).bit_length()


def fixed_point(vocabulary: int) -> float:
    """The power of two by which weights of at most 1 are multiplied before they are cut to integers, so that the sum of
    all of a row stays below 2^62."""
    return 2.0 ** (SUM_BITS - token_bits(vocabulary))


def integer_weights(exponents: Tensor) -> Tensor:
    """exp of exponents `[..., V]` of at most 0 as int64, in units of 1 / `fixed_point`."""
    return exponents.exp().mul_(fixed_point(exponents.shape[-1])).long()


def draw(output: StepOutput, slots_finite: Tensor, given: Distribution, out: Drawn, *, is_filtered: bool) -> None:
    """Choose the next tokens of B rows.

    Args:
        output: of the step.
        slots_finite: `[B]` float32, 1 where what a row keeps is finite, else 0.
        given: what to draw from.
        out: written.
        is_filtered: of some row top_p, or a last place between the first and the last of all, rules out tokens: a GPU
            searches for them.
    """
    if is_on_gpu(output.logits) and _has_triton():
        from rfa.model.draw_triton import draw_by_kernel

        draw_by_kernel(output, slots_finite, given, out, is_filtered=is_filtered)
    else:
        draw_by_torch(output, slots_finite, given, out)


def draw_by_torch(output: StepOutput, slots_finite: Tensor, given: Distribution, out: Drawn) -> None:
    """`draw` as it is written down: the reference."""
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
    """The tokens `[B]` whose intervals hold the uniforms."""
    exponents = (rows.logits - rows.logits[:, :1]).div_(given.temperature[:, None])
    weights = integer_weights(exponents).mul_(exponents >= exponents.gather(1, given.last_place[:, None]))
    total = weights.cumsum(1)
    weights.mul_(total - weights < total[:, -1:] * given.top_p[:, None])
    # The interval of a token begins where that of the token before it ends, whichever of them is better.
    total = weights.new_empty(weights.shape).scatter_(1, rows.tokens, weights).cumsum(1)
    # The largest uniform is 1 - 2^-53: its product with a number rounds to less than that.
    marks = (total[:, -1:] * given.uniform[:, None]).long()
    found = torch.searchsorted(total, marks, right=True)
    # Only a row that is broken goes beyond.
    torch.clamp(found[:, 0], max=weights.shape[1] - 1, out=out)


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None

"""How far float arithmetic may be off: the one derivation of the tolerance of every faster path.

An algorithm whose k-th operation is off by a relative δ_k is off by Σ_k J_k δ_k to first order, J_k what the result
owes to that operation. Which δ it gets depends on the processor: on how its functions are approximated and the order in
which its sums are taken. One run of the eager code is one draw of the δ, and of a sum that cancels it may be right by
luck: twice the error of one run bounds nothing. What holds on every processor is the spread over all δ that arithmetic
may have. With u = 2^-24 the unit round-off of float32 (eps / 2), and δ uniform and independent within

    + - × ÷              u, as IEEE 754 promises
    exp, log, sin, √ …   4 u of each result, 2 ulp, and 2 u that all results of one call share, for an approximation
                         errs to one side over a range of arguments (CUDA's exp2f errs by 2 ulp, the log2 and exp2 of
                         numpy on AVX-512 by 1.9 and 1.0, their means by a few hundredths; those of libm by 1)
    sums, over trees     of n terms with sum S and sum of squares Q: each partial sum s is off by u s, which makes
                         u² Σ s² = u² (2 S² + Q log2 n), S / 2^l and the terms below it at each node of level l
    matrix products      n terms one behind the other, as in the kernels of a BLAS: u² Σ s² = u² n (S² / 3 + Q / 6),
                         the mean over all orders of the terms

and none for what only moves numbers, `Rounding` runs the eager code with such δ on top of what its processor rounds.
The relative error of each result is then a random number, whose mean and standard deviation some runs tell. Three
deviations above the mean hardly a draw is found; of a result of many numbers the deviation is small, for their errors
add up to nearly the same in every draw. A faster path spends up to four roundings where the eager code spends one (E
and V of a distant pair are each products of one number of the query and one of the key; a logarithm to base 2 is scaled
twice): twice the error. What it hands out is rounded once more:

    allowed = 2 (mean + 3 deviations) + eps
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

# Runs of the eager code, which determine the deviation to a quarter.
DRAWS = 8
# Bounds of |δ| in units of u.
ARITHMETIC = 1.0
FUNCTION = 4.0
SHARED = 2.0

_aten = torch.ops.aten
_ARITHMETIC = (_aten.add, _aten.sub, _aten.rsub, _aten.mul, _aten.div, _aten.reciprocal, _aten.pow)
_FUNCTIONS = (
    _aten.exp, _aten.expm1, _aten.log, _aten.log1p, _aten.sqrt, _aten.sin, _aten.cos,
    _aten._softmax, _aten._softmax_backward_data,
)  # fmt: skip
_PRODUCTS = (_aten.mm, _aten.bmm)


class Rounding(TorchDispatchMode):
    """Context manager that perturbs every operation of torch, including gradients, within its rounding."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def _uniform(self, like: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Draw within ± u."""
        if like.device not in self._generators:
            self._generators[like.device] = torch.Generator(like.device).manual_seed(self._seed)
        draw = torch.rand(shape, generator=self._generators[like.device], dtype=like.dtype, device=like.device)
        return (draw - 0.5) * torch.finfo(like.dtype).eps

    def _off(self, result: Tensor, bound: Tensor, shared: float = 0.0) -> Tensor:
        """Perturb `result` by up to `bound`, and in common by up to `shared`, in units of u. Infinities stay."""
        error = bound * self._uniform(result, tuple(result.shape))
        if shared:
            error += result * (shared * self._uniform(result, ()))
        return result + error.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Perturb the result of one operation."""
        kwargs = kwargs or {}
        operation = function.overloadpacket
        if operation is _aten.logsumexp:
            with self:
                return _logsumexp(*args, **kwargs)
        result = function(*args, **kwargs)
        if operation in _ARITHMETIC and result.is_floating_point():
            return self._off(result, ARITHMETIC * result)
        if operation in _FUNCTIONS:
            return self._off(result, FUNCTION * result, SHARED)
        if operation is _aten.sum and result.numel() < args[0].numel():
            squares = function(args[0].square(), *args[1:], **kwargs)
            depth = math.log2(args[0].numel() / result.numel())
            return self._off(result, (2 * result.square() + depth * squares).sqrt())
        if operation in _PRODUCTS:
            squares = function(args[0].square(), args[1].square())
            return self._off(result, (args[0].shape[-1] * (result.square() / 3 + squares / 6)).sqrt())
        return result


def _logsumexp(x: Tensor, dim: list[int], keepdim: bool = False) -> Tensor:
    """Perturb separately: the last rounding is relative to the result, earlier ones are absolute."""
    largest = x.amax(dim, keepdim=True)
    result = largest + (x - largest).exp().sum(dim, keepdim=True).log()
    return result if keepdim else result.squeeze(dim)


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """Return |actual - expected| / |expected| as float64, or 0 if both vanish (one token does not determine decay)."""
    error = float((actual.detach().double() - expected.detach()).norm())
    return error / float(expected.detach().norm()) if error else 0.0


def allowed_errors(eager_errors: Callable[[], dict[str, float]], dtype: torch.dtype) -> dict[str, float]:
    """Return the allowed relative errors of a faster implementation in its output dtype.

    Args:
        eager_errors: Runs the eager code and returns the relative error of every result by name.
    """
    draws: list[dict[str, float]] = []
    for seed in range(DRAWS):
        with Rounding(seed):
            draws.append(eager_errors())
    return {name: allowed_error([draw[name] for draw in draws], dtype) for name in draws[0]}


def allowed_error(draws: Sequence[float], dtype: torch.dtype) -> float:
    """Return the allowed error, given the errors of the eager code under each perturbation."""
    errors = torch.tensor(draws, dtype=torch.float64)
    return 2 * float(errors.mean() + 3 * errors.std()) + torch.finfo(dtype).eps


def assert_within_rounding(
    errors: dict[str, float], eager_errors: Callable[[], dict[str, float]], dtype: torch.dtype
) -> None:
    """Check the relative errors of a faster implementation, by name, against `allowed_errors`.

    Raises:
        AssertionError: An error is too large. The message names the quantity, its error and the allowed error.
    """
    allowed = allowed_errors(eager_errors, dtype)
    for name, error in errors.items():
        if not error <= allowed[name]:
            raise AssertionError(f"{name}: relative error {error:.2e}, allowed {allowed[name]:.2e}")

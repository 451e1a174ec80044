"""How far float arithmetic may be off: the one derivation of the tolerance of every faster path.

An algorithm whose k-th operation is off by a relative δ_k is off by Σ_k J_k δ_k to first order, J_k what the result
owes to that operation. Which δ it gets depends on the processor: on how its functions are approximated and the order in
which its sums are taken. One run of the eager code is one draw of the δ, and of a sum that cancels it may be right by
luck; twice the error of one run bounds nothing. What bounds every processor is the spread over the δ that any
arithmetic may have. With u = 2^-24 the unit round-off of float32 (eps / 2), and independent uniform draws:

    + - × ÷              |δ| <= u, what IEEE 754 promises
    exp, log, sin, √ …   |δ| <= 4 u, 2 ulp: CUDA's exp2f, and above numpy's AVX-512 log2 (1.9) and exp2 (1); libm has 1
    sums, over trees     of n terms with sum S and sum of squares Q, partial sums s: the errors u s add up to
                         u² Σ s² = u² (2 S² + Q log2 n), half the terms below each node: pairwise, blocked, vectorised
    matrix products      n terms one behind the other in any order, as in the kernels of a BLAS:
                         u² Σ s² = u² n (S² / 3 + Q / 6), the mean over all orders

All else moves numbers. `Rounding` runs the eager code with such draws on top of what its processor rounds; the
relative error of a result is then a random number whose mean and standard deviation some draws tell. Three deviations
above the mean one draw in hundreds is found, of a result of many numbers none, for its deviation is small. A faster
path spends up to four roundings where the eager code spends one (E and V of a distant pair are each products of one
number of the query and one of the key; logarithms to base 2 are scaled): twice the deviation. What it hands out is
rounded once more. So

    allowed = 2 (mean + 3 deviations) + eps
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

# Runs of the eager code: the deviation is known to a sixth.
DRAWS = 16

_aten = torch.ops.aten
# Bounds of |δ| in units of u.
_OPERATIONS = {
    **dict.fromkeys((_aten.add, _aten.sub, _aten.rsub, _aten.mul, _aten.div, _aten.reciprocal, _aten.pow), 1),
    **dict.fromkeys((_aten.exp, _aten.expm1, _aten.log, _aten.log1p, _aten.sqrt, _aten.sin, _aten.cos), 4),
    **dict.fromkeys((_aten.logsumexp, _aten._softmax, _aten._softmax_backward_data), 4),
}
_PRODUCTS = (_aten.mm, _aten.bmm)


class Rounding(TorchDispatchMode):
    """While it is entered, every operation of torch is off by a draw of what its rounding may be; gradients too."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def _drawn(self, bound: Tensor) -> Tensor:
        """Uniform within ± bound units of round-off."""
        device = bound.device
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self._seed)
        draw = torch.rand(bound.shape, generator=self._generators[device], dtype=bound.dtype, device=device)
        return bound * ((draw - 0.5) * torch.finfo(bound.dtype).eps)

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """The result of one operation, off by a draw."""
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        operation = function.overloadpacket
        if operation in _OPERATIONS and result.is_floating_point():
            return result + self._drawn(_OPERATIONS[operation] * result)
        if operation is _aten.sum and result.numel() < args[0].numel():
            squares = function(args[0].square(), *args[1:], **kwargs)
            depth = math.log2(args[0].numel() / result.numel())
            return result + self._drawn((2 * result.square() + depth * squares).sqrt())
        if operation in _PRODUCTS:
            squares = function(args[0].square(), args[1].square())
            return result + self._drawn((args[0].shape[-1] * (result.square() / 3 + squares / 6)).sqrt())
        return result


def allowed_errors(eager_errors: Callable[[], dict[str, float]], dtype: torch.dtype) -> dict[str, float]:
    """Relative errors that a faster path may have, in the dtype that it hands out.

    Args:
        eager_errors: runs the eager code and returns the relative error of every result, by name.
    """
    draws: list[dict[str, float]] = []
    for seed in range(DRAWS):
        with Rounding(seed):
            draws.append(eager_errors())
    by_name = {name: torch.tensor([draw[name] for draw in draws], dtype=torch.float64) for name in draws[0]}
    return {name: 2 * float(x.mean() + 3 * x.std()) + torch.finfo(dtype).eps for name, x in by_name.items()}

"""Where the kernels of the tests run: in Triton's interpreter, or on the GPU that is here."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor

from tests.rounding import relative_error

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
interpreted = pytest.mark.skipif(not IS_INTERPRETED, reason="the kernels are defined for the GPU that is here")


def assert_variants_agree(
    found: Mapping[str, Tensor], expected: Mapping[str, Tensor], allowed: Callable[[], Mapping[str, float]]
) -> None:
    """What two variants of a kernel give, which are of the same operations but compiled each by itself.

    The same bits in the interpreter. A GPU's compiler joins products and sums in each of them as it likes: there either
    may be off to its own side by what rounding explains.

    Args:
        allowed: by name, `tests.rounding.allowed_errors` of one of them against what is exact.
    """
    limits = {} if IS_INTERPRETED else allowed()
    for name, tensor in expected.items():
        if IS_INTERPRETED:
            assert torch.equal(found[name], tensor), name
        else:
            error = relative_error(found[name], tensor.double())
            assert error <= 2 * limits[name], f"{name}: {error:.2e} apart, allowed {2 * limits[name]:.2e}"

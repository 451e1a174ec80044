"""Where kernel tests run: in Triton's interpreter or on a GPU."""

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
    """Check two separately compiled variants of a kernel with the same operations.

    The interpreter gives the same bits. A GPU compiler fuses products and sums differently in each, so there both may
    differ by rounding.

    Args:
        allowed: By name, `tests.rounding.allowed_errors` of one of them relative to the exact result.
    """
    limits = {} if IS_INTERPRETED else allowed()
    for name, tensor in expected.items():
        if IS_INTERPRETED:
            assert torch.equal(found[name], tensor), name
        else:
            error = relative_error(found[name], tensor.double())
            assert error <= 2 * limits[name], f"{name}: {error:.2e} apart, allowed {2 * limits[name]:.2e}"

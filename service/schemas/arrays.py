"""Validate NumPy arrays from Arrow requests, with the same bounds as lists in JSON."""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import ValidatorFunctionWrapHandler, WrapValidator


def takes_arrays(largest: float, *, may_miss: bool) -> WrapValidator:
    """Return an annotation for a field with a list of numbers. With it, the field also accepts a float64 array of any
    length.

    Args:
        largest: Largest absolute value that is accepted.
        may_miss: Whether NaN is accepted, like null in JSON.
    """

    def validate(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        if type(value) is not np.ndarray:
            return handler(value)
        is_valid = np.abs(value) <= largest
        if may_miss:
            is_valid |= np.isnan(value)
        invalid = np.flatnonzero(~is_valid)
        if not invalid.size:
            return value
        # The validator for lists raises the error.
        first = int(invalid[0])
        return handler([0.0] * first + [float(value[first])])

    return WrapValidator(validate)

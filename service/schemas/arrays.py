"""Validation of NumPy arrays from Arrow requests, with the same bounds as JSON lists."""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import ValidatorFunctionWrapHandler, WrapValidator


def takes_arrays(largest: float, *, may_miss: bool) -> WrapValidator:
    """Return an annotation with which a list of numbers may also be a float64 array of any length.

    Args:
        largest: largest absolute value.
        may_miss: whether NaN is allowed, as null is in JSON.
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
        # The validator of the list writes the error message.
        first = int(invalid[0])
        return handler([0.0] * first + [float(value[first])])

    return WrapValidator(validate)

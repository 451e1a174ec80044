"""Numbers that came as arrays, as from Arrow: held to the bounds that lists of JSON have, all at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import ValidatorFunctionWrapHandler, WrapValidator


def takes_arrays(largest: float, *, may_miss: bool) -> WrapValidator:
    """Annotation of a list of numbers that may as well be a float64 array, of any length.

    Args:
        largest: bound of their size, which the list's items have too.
        may_miss: whether NaN is allowed, and stands for null.
    """

    def validate(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        if type(value) is not np.ndarray:
            return handler(value)
        is_good = np.abs(value) <= largest
        if may_miss:
            is_good |= np.isnan(value)
        bad = np.flatnonzero(~is_good)
        if not bad.size:
            return value
        # The list's own complaint, with the place and the words that a list gets.
        first = int(bad[0])
        return handler([0.0] * first + [float(value[first])])

    return WrapValidator(validate)

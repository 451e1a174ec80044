"""Rules for named arrays, which are checked before a runtime uses the arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rfa.runtime.bundle.documents import BundleError

AnyArray = NDArray[Any]
# Relative tolerance for values that torch computed in another order and with other libraries.
TOLERANCE = 1e-4
# Rounding to float32 changes the eigenvalues of a covariance by at most this fraction of the largest eigenvalue.
ROUNDING = 1e-6


@dataclass(frozen=True)
class ArrayRule:
    """Rule for an array. All values must be finite.

    Args:
        shape: Required shape.
        dtypes: Allowed dtypes.
        least, above, most: Bounds on the values. `above` is exclusive.
        value: Expected values.
        tolerance: Allowed difference from `value`, relative to its largest magnitude.
        is_covariance: Whether the array must be symmetric and positive semidefinite with a positive diagonal.
    """

    shape: tuple[int, ...]
    dtypes: tuple[str, ...] = ("float32",)
    least: float | None = None
    above: float | None = None
    most: float | None = None
    value: AnyArray | float | None = None
    tolerance: float = TOLERANCE
    is_covariance: bool = False


Rules = dict[str, ArrayRule]


def check_arrays(found: Mapping[str, AnyArray], rules: Mapping[str, ArrayRule], file: str) -> None:
    """Check the names, dtypes, shapes and values of arrays.

    Args:
        found: Mapping from names to arrays.
        rules: Mapping from names of arrays to rules.
        file: Name of the file, for error messages.

    Raises:
        BundleError: If an array is missing, unexpected or invalid. The message names the file, the array and the
            reason.
    """
    for name in sorted(rules.keys() - found.keys())[:1]:
        raise BundleError(f"{file}: {name} is missing, but the configuration requires it")
    for name in sorted(found.keys() - rules.keys())[:1]:
        raise BundleError(f"{file}: {name[:80]} is not an array of this configuration")
    for name, rule in rules.items():
        if str(found[name].dtype) not in rule.dtypes or found[name].shape != rule.shape:
            stored = f"{found[name].dtype}{list(found[name].shape)}"
            raise BundleError(f"{file}: {name} is {stored}, expected {' or '.join(rule.dtypes)}{list(rule.shape)}")
    for name, rule in rules.items():
        problem = _problem(found[name], rule)
        if problem is not None:
            raise BundleError(f"{file}: {name} {problem}")


def _problem(array: AnyArray, rule: ArrayRule) -> str | None:
    if not np.isfinite(array).all():
        return "contains a value that is not finite"
    if rule.least is not None and (array < rule.least).any():
        return f"contains a value below {rule.least:g}"
    if rule.above is not None and (array <= rule.above).any():
        return f"contains a value that is not greater than {rule.above:g}"
    if rule.most is not None and (array > rule.most).any():
        return f"contains a value above {rule.most:g}"
    if rule.is_covariance and not _is_covariance(array.astype(np.float64)):
        return "is not a covariance matrix"
    if rule.value is not None and not _is_near(array, rule.value, rule.tolerance):
        return "differs from the value that is computed from the configuration and the other arrays"
    return None


def _is_near(array: AnyArray, value: AnyArray | float, tolerance: float) -> bool:
    expected = np.broadcast_to(np.asarray(value, np.float64), array.shape)
    scale = float(np.abs(expected).max(initial=0.0))
    return bool((np.abs(array.astype(np.float64) - expected) <= tolerance * scale).all())


def _is_covariance(array: AnyArray) -> bool:
    scale = np.abs(array).max(initial=0.0)
    if (np.diagonal(array) <= 0).any() or np.abs(array - array.T).max() > ROUNDING * scale:
        return False
    return bool(np.linalg.eigvalsh(array).min() >= -ROUNDING * scale * len(array))

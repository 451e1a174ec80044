"""A linear system as a document, which contains matrices with their usual names, or a preset.

    dx = A x dt + dw,  E[dw dwᵀ] = Q dt          y = C x + offset + e,  E[e eᵀ] = R

A document contains plain numbers, lists and strings. It can be part of a request, a file, or the result of a fit:

    {"A": [[0, 1], [0, 0]], "Q": [[0, 0], [0, 0.1]], "C": [[1, 0]], "R": 0.25, "P0": 1e6}
    {"F": [[1, 0.5], [0, 1]], "dt": 0.5, "Q": …, "H": [[1, 0]], "R": 0.25, "P0": 1e6}
    {"preset": "constant_velocity", "dimensions": 2, "process_noise": 0.1, "measurement_noise": 0.25}

With the field `calendar`, the measurements also have a known weekly pattern (`rfa.runtime.filters.calendar`).

The fields are listed in `SHARED`, `MATRICES` and `PRESETS`, and explained in `LinearFilterConfig`. With A, Q is the
spectral density of the process noise (its covariance per unit of time). With F, Q is the covariance of the process
noise over one step of `dt`. If Q, R or P0 is a number, it is multiplied by the
identity matrix.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

import numpy as np

from rfa.runtime.filters.calendar import Calendar
from rfa.runtime.filters.linear_config import LinearFilterConfig
from rfa.runtime.filters.presets import POSITIVE, PRESETS, block
from rfa.runtime.filters.sampled import drift_of, noise_rate
from rfa.runtime.filters.spectrum import spectrum

MOST_STATES: Final = 64
MOST_COMPONENTS: Final = 64
MOST_PASSES: Final = 64
LARGEST: Final = 1e30
# Negative eigenvalues of a covariance are treated as rounding errors if their magnitude is below this value.
ROUNDING: Final = 1e-9

# Fields of every document, and of documents with matrices, with their names in `LinearFilterConfig`.
SHARED: Final = {
    "x0": "initial_mean", "P0": "initial_covariance", "offset": "offset", "nu": "nu", "passes": "inner",
    "contamination": "contamination", "outlier_scale": "outlier_scale", "reacquire": "reacquire",
}  # fmt: skip
MATRICES: Final = {"A": "drift", "Q": "process_noise", "C": "observation", "R": "measurement_noise"}
# Alternative names of fields, and the fields that replace A.
ALSO: Final = {"H": "C", "bias": "offset"}
PER_STEP: Final = ("F", "dt")
CALENDAR: Final = "calendar"
# Fields in which null has a meaning: no robust weights, and no jumps.
NULLABLE: Final = ("nu", "reacquire")


class InvalidSystem(ValueError):
    """Raised if a document of a system is invalid.

    Attributes:
        field: The invalid field, such as `system.A`.
    """

    def __init__(self, field: str, reason: str) -> None:
        self.field = f"system.{field}" if field else "system"
        super().__init__(f"{self.field} {reason}")


@dataclass(frozen=True, eq=False)
class System:
    """A validated linear system.

    Attributes:
        config: Configuration of the linear filter.
        document: The validated document, with one name for each field and with the defaults.
        calendar: Weekly pattern in every measurement. None if there is none.
    """

    config: LinearFilterConfig
    document: Mapping[str, Any]
    calendar: Calendar | None = None

    @classmethod
    def from_document(cls, document: object) -> Self:
        """Validate a document, and return the system that it defines.

        Raises:
            InvalidSystem: If a field is invalid. The message names the field and the reason.
        """
        given = _renamed(document)
        pattern = given.pop(CALENDAR, None)
        whole = _preset(given) if "preset" in given else _given(given)
        config = _config(whole)
        if pattern is None:
            return cls(config, whole)
        calendar = _calendar(pattern, len(config.measurement_noise))
        return cls(config, {**whole, CALENDAR: calendar.to_document()}, calendar)

    @classmethod
    def of(cls, config: LinearFilterConfig) -> Self:
        """Return the system with the matrices of a filter configuration.

        Raises:
            InvalidSystem: If the system is too large, or its rule is not supported.
        """
        values = asdict(config)
        if config.rule != "capped":
            raise InvalidSystem("", f"does not support rule {config.rule!r}, only 'capped'")
        document = {short: values[name] for short, name in {**MATRICES, **SHARED}.items()}
        return cls.from_document(json.loads(json.dumps(document)))

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of the document in hexadecimal. Equivalent documents have the same digest."""
        text = json.dumps(self.document, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def name(self) -> str:
        """Name of the system in replies."""
        return f"system:{self.digest[:8]}"


def _renamed(document: object) -> dict[str, Any]:
    """Return a document with alternative field names replaced, so that each field has only one possible name."""
    if not isinstance(document, Mapping) or not all(isinstance(name, str) for name in document):
        raise InvalidSystem("", "must be an object with the fields of a system, such as A, Q, C and R, or preset")
    given = dict(document)
    for other, name in ALSO.items():
        if other in given:
            if name in given:
                raise InvalidSystem(other, f"and {name} are names of the same field; set only one of them")
            given[name] = given.pop(other)
    plain = {
        name: value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value for name, value in given.items()
    }
    return {name: value for name, value in plain.items() if value is not None or name in NULLABLE}


def _calendar(document: Any, size: int) -> Calendar:
    try:
        calendar = Calendar.from_document(document)
    except ValueError as error:
        field, _, reason = str(error).partition(" ")
        raise InvalidSystem(field, reason) from None
    if len(calendar.pattern) != size:
        raise InvalidSystem(
            f"{CALENDAR}.pattern", f"has {len(calendar.pattern)} columns, but the system has {size} components"
        )
    return calendar


def _check_names(given: Mapping[str, Any], allowed: Sequence[str], owner: str) -> None:
    for name in given:
        if name not in allowed:
            shown = name[:64] if name.isidentifier() else "?"
            raise InvalidSystem(shown, f"is not a field of {owner}; the fields are {', '.join(allowed)}")


# Numbers, vectors and matrices.


def _number(given: Mapping[str, Any], name: str, default: float | None = None) -> float:
    value = given.get(name, default)
    if not _is_number(value):
        raise InvalidSystem(name, f"must be a number of magnitude at most {LARGEST:g}")
    return float(value)  # type: ignore[arg-type]


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and -LARGEST <= value <= LARGEST


def _whole(given: Mapping[str, Any], name: str, default: int, least: int, most: int) -> int:
    value = given.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InvalidSystem(name, f"must be an integer from {least} to {most}")
    return value


def _vector(given: Mapping[str, Any], name: str, size: int) -> list[float]:
    value = given[name]
    if not _is_list(value) or len(value) != size or not all(map(_is_number, value)):
        raise InvalidSystem(name, f"must be a list of {size} numbers of magnitude at most {LARGEST:g}")
    return [float(x) for x in value]


def _matrix(given: Mapping[str, Any], name: str, rows: int | None, columns: int | None) -> list[list[float]]:
    value, most = given[name], max(MOST_STATES, MOST_COMPONENTS)
    if not _is_list(value) or not value or not all(_is_list(row) and row for row in value):
        raise InvalidSystem(name, "must be a matrix, written as a list of rows, which are lists of numbers")
    height, width = len(value), len(value[0])
    if max(height, width) > most:
        raise InvalidSystem(
            name, f"has shape [{height}, {width}], but at most {most} states and components are supported"
        )
    if any(len(row) != width for row in value) or height != (rows or height) or width != (columns or width):
        raise InvalidSystem(name, f"must have shape [{rows or 'any'}, {columns or 'any'}], with rows of equal length")
    if not all(_is_number(x) for row in value for x in row):
        raise InvalidSystem(name, f"must contain numbers of magnitude at most {LARGEST:g}")
    return [[float(x) for x in row] for row in value]


def _square(given: Mapping[str, Any], name: str, size: int) -> list[list[float]]:
    """Return the matrix in a field. A number is multiplied by the identity."""
    if _is_list(given[name]):
        return _matrix(given, name, size, size)
    value = _number(given, name)
    return [[value if i == j else 0.0 for j in range(size)] for i in range(size)]


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


# Documents.


def _given(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with all fields of a system, given a document that contains matrices."""
    _check_names(given, (*MATRICES, *PER_STEP, *SHARED), "a system")
    if ("A" in given) == ("F" in given):
        raise InvalidSystem("A", "or F with dt is required; set only one of them")
    if ("dt" in given) != ("F" in given):
        raise InvalidSystem("dt", "is the time step of F; set both or neither")
    first = "A" if "A" in given else "F"
    whole: dict[str, Any] = {first: _matrix(given, first, None, None)}
    n = len(whole[first])
    whole[first] = _matrix(given, first, n, n)
    if first == "F":
        whole["dt"] = _number(given, "dt")
        if whole["dt"] <= 0:
            raise InvalidSystem("dt", f"must be greater than 0, got {whole['dt']:g}")
    for name, what in (("Q", "the covariance of the process noise"), ("R", "the covariance of the measurement noise")):
        if name not in given:
            raise InvalidSystem(name, f"is required; it is {what}")
    whole["Q"] = _square(given, "Q", n)
    if "C" in given:
        whole["C"] = _matrix(given, "C", None, n)
    p = len(whole["C"]) if "C" in whole else n
    whole["R"] = _square(given, "R", p)
    return {**whole, **_shared(given, n, p)}


def _shared(given: Mapping[str, Any], n: int, p: int) -> dict[str, Any]:
    """Return the fields that all documents may contain, with their defaults."""
    whole: dict[str, Any] = {}
    for name, size in (("x0", n), ("offset", p)):
        if name in given:
            whole[name] = _vector(given, name, size)
    if "P0" in given:
        whole["P0"] = _square(given, "P0", n)
    whole["nu"] = None if given.get("nu", 7.0) is None else _number(given, "nu", 7.0)
    patience = given.get("reacquire", 6)
    whole["reacquire"] = None if patience is None else _whole(given, "reacquire", 6, 2, 1_000_000)
    whole["passes"] = _whole(given, "passes", 3, 1, MOST_PASSES)
    whole["contamination"] = _number(given, "contamination", 0.0)
    whole["outlier_scale"] = _number(given, "outlier_scale", 10.0)
    return whole


def _preset(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with all fields of a preset, given a document that contains some of them. Missing fields get
    their defaults."""
    name = given["preset"]
    if not isinstance(name, str) or name not in PRESETS:
        raise InvalidSystem("preset", f"must be one of {', '.join(PRESETS)}")
    preset = PRESETS[name]
    parameters = (*preset.needed, *preset.others)
    _check_names(given, ("preset", "dimensions", *parameters, *SHARED), f"the preset {name!r}")
    for needed in preset.needed:
        if needed not in given:
            raise InvalidSystem(needed, f"is required, because the state of the preset {name!r} is {preset.states}")
    whole: dict[str, Any] = {"preset": name, "dimensions": _whole(given, "dimensions", 1, 1, MOST_COMPONENTS)}
    for parameter in parameters:
        if parameter == "harmonics":
            whole[parameter] = _whole(given, parameter, 3, 1, MOST_STATES // 2)
            continue
        value = whole[parameter] = _number(given, parameter, preset.others.get(parameter))
        if value < 0 or (value == 0 and parameter in POSITIVE):
            raise InvalidSystem(
                parameter, f"must be {'above 0' if parameter in POSITIVE else '0 or more'}, got {value:g}"
            )
    size = len(block(whole).sensor)
    if size * whole["dimensions"] > MOST_STATES:
        name = "harmonics" if name == "seasonal" and size > MOST_STATES // 2 else "dimensions"
        raise InvalidSystem(
            name, f"give {size * whole['dimensions']} states, but at most {MOST_STATES} are supported; use fewer"
        )
    return {**whole, **_shared(given, size * whole["dimensions"], whole["dimensions"])}


def _config(whole: Mapping[str, Any]) -> LinearFilterConfig:
    """Return the configuration of the filter for a document that contains all fields."""
    values = {name: whole[short] for short, name in SHARED.items() if short in whole}
    values |= _preset_matrices(whole) if "preset" in whole else _matrices(whole)
    try:
        return LinearFilterConfig(**values)
    except ValueError as error:
        raise _refusal(str(error), is_step="F" in whole) from None


def _preset_matrices(whole: Mapping[str, Any]) -> dict[str, Any]:
    one_dimension, one = block(whole), np.eye(whole["dimensions"])
    found: dict[str, Any] = {
        "drift": np.kron(one, one_dimension.drift),
        "process_noise": np.kron(one, np.diag(one_dimension.noise)),
        "measurement_noise": whole["measurement_noise"] * one,
        "observation": np.kron(one, one_dimension.sensor),
    }
    if "P0" not in whole and one_dimension.prior is not None:
        if not (one_dimension.prior > 0).all():
            raise InvalidSystem(
                "P0", "is required if all process noise is zero; it is the covariance of the initial state around x0"
            )
        found["initial_covariance"] = np.kron(one, np.diag(one_dimension.prior))
    return found


def _matrices(whole: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: whole[short] for short, name in MATRICES.items() if short in whole}
    if "F" not in whole:
        return found
    lag, noise = whole["dt"], np.array(whole["Q"])
    lowest = np.linalg.eigvalsh((noise + noise.T) / 2).min()
    if not np.allclose(noise, noise.T, atol=ROUNDING * np.abs(noise).max()) or lowest < -ROUNDING * np.abs(noise).max():
        raise InvalidSystem("Q", "must be symmetric and positive semidefinite")
    try:
        drift = drift_of(np.array(whole["F"]), lag)
        modes = spectrum(drift)
    except ValueError as error:
        raise _refusal(str(error), is_step=True, name="F") from None
    try:
        rate = noise_rate(modes, noise, lag)
    except ValueError as error:
        raise InvalidSystem("Q", str(error)) from None
    values, vectors = np.linalg.eigh(rate)
    # In directions in which the rate is zero, it has rounding errors of F and Q.
    if values.min() < -1e3 * ROUNDING * max(values.max(), 0.0):
        raise InvalidSystem(
            "Q",
            "cannot be the process noise covariance of a continuous-time system with this F, because the spectral "
            f"density of the process noise would have the negative eigenvalue {values.min():.3g}. Noise that is "
            "constant over each step (filterpy's Q_discrete_white_noise) is not supported; use "
            "Q_continuous_white_noise, or specify A and the spectral density Q",
        )
    return {**found, "drift": drift, "process_noise": (vectors * np.maximum(values, 0.0)) @ vectors.T}


def _refusal(reason: str, *, is_step: bool, name: str = "") -> InvalidSystem:
    """Convert an error of a configuration to one that contains the field names of the document."""
    names = {long: short for short, long in {**MATRICES, **SHARED}.items()}
    names["drift"] = "F" if is_step else "A"
    message = re.sub(r"\b[a-z_]+\b", lambda word: names.get(word[0], word[0]), reason)
    if message.startswith("P0 is required"):
        message += (
            ". A number is multiplied by the identity; use a large number if nothing is known about the initial state"
        )
    first, _, rest = message.partition(" ")
    if first in names.values():
        return InvalidSystem(first, rest)
    return InvalidSystem(name, message)

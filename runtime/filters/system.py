"""A linear system as people write it: matrices under the names that they are known by, or a preset.

    dx = A x dt + dw,  E[dw dwᵀ] = Q dt          y = C x + offset + e,  E[e eᵀ] = R

A document is an object of plain numbers, lists and words, so that it can be a part of a request, a file, or what a fit
leaves behind:

    {"A": [[0, 1], [0, 0]], "Q": [[0, 0], [0, 0.1]], "C": [[1, 0]], "R": 0.25, "P0": 1e6}
    {"F": [[1, 0.5], [0, 1]], "dt": 0.5, "Q": …, "H": [[1, 0]], "R": 0.25, "P0": 1e6}
    {"preset": "constant_velocity", "dimensions": 2, "process_noise": 0.1, "measurement_noise": 0.25}

With `calendar` the measurements also have a known pattern of the week (`rfa.runtime.filters.calendar`).

`SHARED`, `MATRICES` and `PRESETS` say which fields there are, `LinearFilterConfig` what they mean. Q is noise per unit
time beside A, and the noise of one step of `dt` beside F. A number in the place of Q, R or P0 is that times the
identity. numpy alone: no torch, nothing compiled.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple, Self

import numpy as np

from rfa.runtime.filters.calendar import Calendar
from rfa.runtime.filters.linear_config import LinearFilterConfig
from rfa.runtime.filters.sampled import drift_of, noise_rate
from rfa.runtime.filters.spectrum import spectrum

Array = np.ndarray[Any, Any]
MOST_STATES: Final = 64
MOST_COMPONENTS: Final = 64
MOST_PASSES: Final = 64
LARGEST: Final = 1e30
# Where nothing is known of a state, its variance is so many times that of what the measurements say of it. More would
# leave too few digits for what the first measurements are subtracted from.
DIFFUSE: Final = 1e12
# Of a covariance, so far below zero is rounding.
ROUNDING: Final = 1e-9

# Fields of every document, and of one with matrices; `config` calls them so.
SHARED: Final = {
    "x0": "initial_mean", "P0": "initial_covariance", "offset": "offset", "nu": "nu", "passes": "inner",
    "contamination": "contamination", "outlier_scale": "outlier_scale", "reacquire": "reacquire",
}  # fmt: skip
MATRICES: Final = {"A": "drift", "Q": "process_noise", "C": "observation", "R": "measurement_noise"}
# Other names of the same fields, and what stands in the place of A.
ALSO: Final = {"H": "C", "bias": "offset"}
PER_STEP: Final = ("F", "dt")
CALENDAR: Final = "calendar"
# Fields where null is a choice, and not left out: without robust weights, and without jumps.
NULL_SAYS: Final = ("nu", "reacquire")


class InvalidSystem(ValueError):
    """A document is refused.

    Attributes:
        field: that is wrong, such as `system.A`.
    """

    def __init__(self, field: str, reason: str) -> None:
        self.field = f"system.{field}" if field else "system"
        super().__init__(f"{self.field} {reason}")


class Preset(NamedTuple):
    """A system by its name: parameters that must be given, and others with what they are where they are not."""

    needed: tuple[str, ...]
    others: Mapping[str, float | int]
    states: str  # of one dimension, in words


PRESETS: Final[Mapping[str, Preset]] = {
    "level": Preset(("process_noise", "measurement_noise"), {}, "a level that wanders"),
    "trend": Preset(
        ("process_noise", "slope_noise", "measurement_noise"), {"damping": 0.0}, "a level and its slope, both wander"
    ),
    "constant_velocity": Preset(("process_noise", "measurement_noise"), {}, "position and velocity"),
    "constant_acceleration": Preset(
        ("process_noise", "measurement_noise"), {}, "position, velocity and acceleration"
    ),
    "oscillator": Preset(
        ("period", "process_noise", "measurement_noise"), {"damping": 0.0}, "the two phases of an oscillation"
    ),
    "seasonal": Preset(
        ("period", "process_noise", "measurement_noise"), {"harmonics": 3, "season_noise": 0.0},
        "a level that wanders, and two phases of each harmonic",
    ),
}  # fmt: skip
# Above zero; the other parameters may be zero.
POSITIVE: Final = frozenset({"measurement_noise", "period"})


@dataclass(frozen=True, eq=False)
class System:
    """A system that was checked.

    Attributes:
        config: what filters run.
        calendar: what every measurement has beside, by the time of the week; None is nothing.
        document: the same as the document that was given, by one name a field, with what was left out.
    """

    config: LinearFilterConfig
    document: Mapping[str, Any]
    calendar: Calendar | None = None

    @classmethod
    def from_document(cls, document: object) -> Self:
        """Check a document.

        Raises:
            InvalidSystem: the field, and what is wrong with it.
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
        """That of a config.

        Raises:
            InvalidSystem: it is too large.
        """
        values = asdict(config)
        if config.rule != "capped":
            raise InvalidSystem("", f"cannot have the rule {config.rule!r}: it weighs observations by 'capped'")
        named = {short: values[name] for short, name in {**MATRICES, **SHARED}.items()}
        return cls.from_document(json.loads(json.dumps(named)))

    @functools.cached_property
    def digest(self) -> str:
        """Sha256 of the document, in hexadecimal: equal for equal documents, however they were spelt."""
        text = json.dumps(self.document, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def name(self) -> str:
        """What replies call it."""
        return f"system:{self.digest[:8]}"


def _renamed(document: object) -> dict[str, Any]:
    """The document with one name for each field."""
    if not isinstance(document, Mapping) or not all(isinstance(name, str) for name in document):
        raise InvalidSystem("", "must be an object with the fields of a system, such as A, Q, C and R, or preset")
    given = dict(document)
    for other, name in ALSO.items():
        if other in given:
            if name in given:
                raise InvalidSystem(other, f"and {name} are the same: give one of them")
            given[name] = given.pop(other)
    plain = {
        name: value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value for name, value in given.items()
    }
    return {name: value for name, value in plain.items() if value is not None or name in NULL_SAYS}


def _calendar(document: Any, size: int) -> Calendar:
    """Of so many components."""
    try:
        calendar = Calendar.from_document(document)
    except ValueError as error:
        field, _, reason = str(error).partition(" ")
        raise InvalidSystem(field, reason) from None
    if len(calendar.pattern) != size:
        raise InvalidSystem(
            f"{CALENDAR}.pattern", f"has {len(calendar.pattern)} columns, and the system measures {size} components"
        )
    return calendar


def _check_names(given: Mapping[str, Any], known: Sequence[str], whose: str) -> None:
    for name in given:
        if name not in known:
            shown = name[:64] if name.isidentifier() else "?"
            raise InvalidSystem(shown, f"is no field of {whose}: they are {', '.join(known)}")


# Numbers, vectors and matrices.


def _number(given: Mapping[str, Any], name: str, default: float | None = None) -> float:
    value = given.get(name, default)
    if not _is_number(value):
        raise InvalidSystem(name, f"must be a number of at most {LARGEST:g} in size")
    return float(value)  # type: ignore[arg-type]


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and -LARGEST <= value <= LARGEST


def _whole(given: Mapping[str, Any], name: str, default: int, least: int, most: int) -> int:
    value = given.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InvalidSystem(name, f"must be a whole number from {least} to {most}")
    return value


def _vector(given: Mapping[str, Any], name: str, size: int) -> list[float]:
    value = given[name]
    if not _is_list(value) or len(value) != size or not all(map(_is_number, value)):
        raise InvalidSystem(name, f"must be a list of {size} numbers of at most {LARGEST:g} in size")
    return [float(x) for x in value]


def _matrix(given: Mapping[str, Any], name: str, rows: int | None, columns: int | None) -> list[list[float]]:
    value, most = given[name], max(MOST_STATES, MOST_COMPONENTS)
    if not _is_list(value) or not value or not all(_is_list(row) and row for row in value):
        raise InvalidSystem(name, "must be a matrix: a list of its rows, each a list of numbers")
    height, width = len(value), len(value[0])
    if max(height, width) > most:
        raise InvalidSystem(name, f"is [{height}, {width}]; systems of up to {most} states and components are taken")
    if any(len(row) != width for row in value) or height != (rows or height) or width != (columns or width):
        raise InvalidSystem(name, f"must be [{rows or 'any'}, {columns or 'any'}], with rows of one length")
    if not all(_is_number(x) for row in value for x in row):
        raise InvalidSystem(name, f"must hold numbers of at most {LARGEST:g} in size")
    return [[float(x) for x in row] for row in value]


def _square(given: Mapping[str, Any], name: str, size: int) -> list[list[float]]:
    """A matrix, or a number, which is that times the identity."""
    if _is_list(given[name]):
        return _matrix(given, name, size, size)
    value = _number(given, name)
    return [[value if i == j else 0.0 for j in range(size)] for i in range(size)]


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


# Documents.


def _given(given: Mapping[str, Any]) -> dict[str, Any]:
    """A document with matrices, whole."""
    _check_names(given, (*MATRICES, *PER_STEP, *SHARED), "a system")
    if ("A" in given) == ("F" in given):
        raise InvalidSystem("A", "is needed, or F with dt in its place: how the state moves")
    if ("dt" in given) != ("F" in given):
        raise InvalidSystem("dt", "is needed beside F, and beside F alone: the time that F is of")
    first = "A" if "A" in given else "F"
    whole: dict[str, Any] = {first: _matrix(given, first, None, None)}
    n = len(whole[first])
    whole[first] = _matrix(given, first, n, n)
    if first == "F":
        whole["dt"] = _number(given, "dt")
        if whole["dt"] <= 0:
            raise InvalidSystem("dt", "must be above 0")
    for name, what in (("Q", "the noise that moves the state"), ("R", "the noise of a measurement")):
        if name not in given:
            raise InvalidSystem(name, f"is needed: {what}")
    whole["Q"] = _square(given, "Q", n)
    if "C" in given:
        whole["C"] = _matrix(given, "C", None, n)
    p = len(whole["C"]) if "C" in whole else n
    whole["R"] = _square(given, "R", p)
    return {**whole, **_shared(given, n, p)}


def _shared(given: Mapping[str, Any], n: int, p: int) -> dict[str, Any]:
    """The fields of every document, whole."""
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
    """A document with a preset, whole."""
    name = given["preset"]
    if not isinstance(name, str) or name not in PRESETS:
        raise InvalidSystem("preset", f"must be one of {', '.join(PRESETS)}")
    preset = PRESETS[name]
    parameters = (*preset.needed, *preset.others)
    _check_names(given, ("preset", "dimensions", *parameters, *SHARED), f"the preset {name!r}")
    for needed in preset.needed:
        if needed not in given:
            raise InvalidSystem(needed, f"is needed: the preset {name!r} is {preset.states}")
    whole: dict[str, Any] = {"preset": name, "dimensions": _whole(given, "dimensions", 1, 1, MOST_COMPONENTS)}
    for parameter in parameters:
        if parameter == "harmonics":
            whole[parameter] = _whole(given, parameter, 3, 1, MOST_STATES // 2)
            continue
        value = whole[parameter] = _number(given, parameter, preset.others.get(parameter))
        if value < 0 or (value == 0 and parameter in POSITIVE):
            raise InvalidSystem(parameter, f"must be {'above 0' if parameter in POSITIVE else '0 or more'}")
    size = len(_block(whole).sensor)
    if size * whole["dimensions"] > MOST_STATES:
        name = "harmonics" if name == "seasonal" and size > MOST_STATES // 2 else "dimensions"
        raise InvalidSystem(name, f"make {size * whole['dimensions']} states; up to {MOST_STATES} are taken")
    return {**whole, **_shared(given, size * whole["dimensions"], whole["dimensions"])}


class _Block(NamedTuple):
    """One dimension of a preset: A, the diagonal of Q, the row of C, and the diagonal of a P0 that knows nothing, or
    None where it has a stationary covariance."""

    drift: Array
    noise: Array
    sensor: Array
    prior: Array | None


def _block(whole: Mapping[str, Any]) -> _Block:
    name, noise = whole["preset"], whole["process_noise"]
    wide = DIFFUSE * whole["measurement_noise"]
    if name == "level":
        return _Block(np.zeros((1, 1)), np.array([noise]), np.array([1.0]), np.array([wide]))
    if name == "oscillator":
        turn = _turn(2 * math.pi / whole["period"], whole["damping"])
        prior = None if whole["damping"] else np.full(2, wide)
        return _Block(turn, np.full(2, noise), np.array([1.0, 0.0]), prior)
    if name == "seasonal":
        count = 2 * whole["harmonics"]
        drift = np.zeros((1 + count, 1 + count))
        for k in range(1, whole["harmonics"] + 1):
            drift[2 * k - 1 : 2 * k + 1, 2 * k - 1 : 2 * k + 1] = _turn(2 * math.pi * k / whole["period"], 0.0)
        sensor = np.array([1.0, *([1.0, 0.0] * whole["harmonics"])])
        return _Block(drift, np.array([noise, *[whole["season_noise"]] * count]), sensor, np.full(1 + count, wide))
    order = 3 if name == "constant_acceleration" else 2
    drift, sensor = np.eye(order, k=1), np.eye(order)[0]
    noises = np.zeros(order)
    noises[-1] = noise
    if name == "trend":
        drift[1, 1] = -whole["damping"]
        noises[:] = noise, whole["slope_noise"]
    return _Block(drift, noises, sensor, wide / _natural_time(whole, order) ** (2.0 * np.arange(order)))


def _turn(omega: float, damping: float) -> Array:
    return np.array([[-damping, -omega], [omega, -damping]])


def _natural_time(whole: Mapping[str, Any], order: int) -> float:
    """The time after which the noise of the state is as large as that of a measurement: the scale of its slopes."""
    noise = whole["slope_noise" if whole["preset"] == "trend" else "process_noise"]
    if noise > 0:
        return float((whole["measurement_noise"] / noise) ** (1 / (2 * order - 1)))
    if whole["process_noise"] > 0:
        return float(whole["measurement_noise"] / whole["process_noise"])
    return math.inf


def _config(whole: Mapping[str, Any]) -> LinearFilterConfig:
    """What filters run, of a whole document."""
    values = {name: whole[short] for short, name in SHARED.items() if short in whole}
    values |= _preset_matrices(whole) if "preset" in whole else _matrices(whole)
    try:
        return LinearFilterConfig(**values)
    except ValueError as error:
        raise _refusal(str(error), is_step="F" in whole) from None


def _preset_matrices(whole: Mapping[str, Any]) -> dict[str, Any]:
    block, one = _block(whole), np.eye(whole["dimensions"])
    found: dict[str, Any] = {
        "drift": np.kron(one, block.drift),
        "process_noise": np.kron(one, np.diag(block.noise)),
        "measurement_noise": whole["measurement_noise"] * one,
        "observation": np.kron(one, block.sensor),
    }
    if "P0" not in whole and block.prior is not None:
        if not (block.prior > 0).all():
            raise InvalidSystem("P0", "is needed where nothing moves the state: how far it may be from x0 at first")
        found["initial_covariance"] = np.kron(one, np.diag(block.prior))
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
    # A rate that is zero in a direction comes back with the rounding of F and Q.
    if values.min() < -1e3 * ROUNDING * max(values.max(), 0.0):
        raise InvalidSystem(
            "Q",
            f"is the noise of no system in continuous time with this F: per unit time it would have the eigenvalue "
            f"{values.min():.3g}. An acceleration that is held over each step (filterpy's Q_discrete_white_noise) is "
            "none; take Q_continuous_white_noise, or A and the noise per unit time",
        )
    return {**found, "drift": drift, "process_noise": (vectors * np.maximum(values, 0.0)) @ vectors.T}


def _refusal(reason: str, *, is_step: bool, name: str = "") -> InvalidSystem:
    """What the config refused, by the names of a document."""
    known = {long: short for short, long in {**MATRICES, **SHARED}.items()}
    known["drift"] = "F" if is_step else "A"
    told = re.sub(r"\b[a-z_]+\b", lambda word: known.get(word[0], word[0]), reason)
    if told.startswith("P0 is needed"):
        told += ". A number stands for that times the identity; a large one says that nothing is known"
    first, _, rest = told.partition(" ")
    if first in known.values():
        return InvalidSystem(first, rest)
    return InvalidSystem(name, told)


__all__ = ["InvalidSystem", "System"]

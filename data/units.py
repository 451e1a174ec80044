"""Convert the cells of a column that have units, such as `199 ms`, `1.48 s`, `331 kB/s` or `EUR 12`, to one unit."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

# A number in any language, and the text that follows it.
WITH_UNIT: Final = (
    r"^(?P<number>[+\-]?(?:\d(?:[\d.,'_’\x{00a0}\x{202f} ]*\d)?|\.\d+)\.?(?:[eE][+\-]?\d+)?)"
    r"[ \x{00a0}\x{202f}]*(?P<unit>[^\d\s.,;:()<>/][^\s;:()<>]{0,11}(?: [AD]C)?|/[^\d\s;:()<>]{1,11})?$"
)
# Currencies and similar words before a number.
BEFORE: Final = r"^([+-]?)([A-Z]{3}|[A-Z]{1,3}\$|R[ps]\.?|RM|kr\.?|zł|Fr\.)[ \x{00a0}]?([+-]?[\d.].*)$"
TIMES: Final = {
    "ps": 1e-12, "ns": 1e-9, "µs": 1e-6, "μs": 1e-6, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "secs": 1.0,
    "second": 1.0,
    "seconds": 1.0, "min": 60.0, "mins": 60.0, "minute": 60.0, "minutes": 60.0, "h": 3600.0, "hr": 3600.0,
    "hrs": 3600.0,
    "hour": 3600.0, "hours": 3600.0, "d": 86400.0, "day": 86400.0, "days": 86400.0, "week": 604800.0, "weeks": 604800.0,
}  # fmt: skip
COUNTS: Final = {
    "K": 1e3, "k": 1e3, "M": 1e6, "Mil": 1e6, "mn": 1e6, "Bil": 1e9, "bn": 1e9, "Tri": 1e12,
    "千": 1e3, "万": 1e4, "萬": 1e4, "亿": 1e8, "億": 1e8,
}  # fmt: skip
SI: Final = {
    "p": 1e-12, "n": 1e-9, "µ": 1e-6, "μ": 1e-6, "u": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9,
    "T": 1e12, "P": 1e15,
}  # fmt: skip
# Temperatures in two units.
DEGREES: Final = (("°C", "°F"), ("C", "F"))
BINARY: Final = {f"{letter}i": 1024.0 ** (power + 1) for power, letter in enumerate("KMGTP")}
# Units that may have prefixes. Bytes and bits may also have binary prefixes.
DATA: Final = ("B", "Byte", "bytes", "b", "bit", "bits")
DATA_RATES: Final = tuple(f"{unit}{per}" for unit in ("B", "b", "bit") for per in ("/s", "ps"))
PREFIXED: Final = (
    "W", "Wh", "V", "A", "VA", "var", "Hz", "Pa", "bar", "g", "m", "l", "L", "J", "N", "Ω", "F", "eV", "Ah", "cal",
    "mol", "lm", "lx", "T", "Wp", "t", "rpm", "ops", "ops/s", "req/s", "rps", "iops", "pps", "p/s", "cps", "c/s",
)  # fmt: skip
# Multiples without a unit, as in Kubernetes, where 1501m is 1.501.
MULTIPLES: Final = {letter: size for letter, size in SI.items() if letter} | BINARY
# Prefixes that count as multiples only if another multiple occurs, because 5p is more likely a price or a page.
RARE: Final = ("p", "P", "T")
SPACE_BEFORE: Final = r"\d[ \x{00a0}\x{202f}]+\pL"
# A number other than zero. Zero needs no unit.
NOT_ZERO: Final = r"^[^\pL]*[1-9]"
# Maximum fraction of cells without a unit, except zeros, in a column with units.
MOST_BARE: Final = 0.5


@dataclass(frozen=True)
class Units:
    """The cells of a column without their units.

    Attributes:
        cells: Numbers as text.
        factors: Factor of each cell, or None if all factors are one.
        unit: Unit of the column. An empty string if the cells only have multiples such as k.
        note: Note on how the units were read.
        offsets: Number that is added to each cell after scaling, or None if there are none.
    """

    cells: Any
    factors: np.ndarray | None
    unit: str
    note: str
    offsets: np.ndarray | None = None

    def convert(self, values: np.ndarray) -> np.ndarray:
        """Return numbers in the unit of the column."""
        scaled = values if self.factors is None else values * self.factors
        return scaled if self.offsets is None else scaled + self.offsets


def split_units(cells: Any) -> Units | None:
    """Return the cells without their units, in the smallest unit that occurs. Return None if they have no units, or
    units of several kinds.

    If some cells have a multiple such as m or Ki, cells without a multiple are in the base unit. If some cells have a
    unit, cells without a unit become null, except for zeros.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    cells = pc.replace_substring_regex(cells, BEFORE, r"\1\3 \2") if _any(cells, BEFORE) else cells
    parts = pc.extract_regex(cells, WITH_UNIT)
    parts = parts.combine_chunks() if isinstance(parts, pa.ChunkedArray) else parts
    numbers, written = pc.struct_field(parts, "number"), pc.struct_field(parts, "unit")
    encoded = written.dictionary_encode()
    units = [unit or "" for unit in encoded.dictionary.to_pylist()]
    present = [unit for unit in units if unit]
    seen = len(parts) - parts.null_count
    is_bare = pc.equal(written, "")
    if not present or 2 * seen <= len(cells) - cells.null_count:
        return None
    is_not_zero = pc.and_(is_bare, pc.match_substring_regex(numbers, NOT_ZERO))
    has_bare = pc.any(is_not_zero, min_count=0).as_py()
    chunked = pa.chunked_array([numbers])
    is_multiple = set(present) <= MULTIPLES.keys() and not _any(cells, SPACE_BEFORE)
    if is_multiple and (len(present) > 1 or (has_bare and present[0] not in RARE)):
        example = cells.filter(pc.fill_null(pc.not_equal(written, ""), False))[0].as_py()
        note = f"{_multiples(present)}, such as {example!r}; cells without such a suffix are in the base unit"
        return Units(chunked, _factors(encoded, [MULTIPLES.get(unit, 1.0) for unit in units]), "", note)
    if (pc.sum(is_not_zero).as_py() or 0) > MOST_BARE * seen:
        return None
    if not has_bare and any(set(present) == {*pair} for pair in DEGREES):
        celsius, fahrenheit = next(pair for pair in DEGREES if set(present) == {*pair})
        is_other = _factors(encoded, [float(unit == fahrenheit) for unit in units])
        note = f"values are in {celsius}; cells in {fahrenheit} are converted"
        return Units(chunked, 1 - is_other * 4 / 9, celsius, note, -is_other * 160 / 9)
    sizes = {present[0]: 1.0} if len(present) == 1 and present[0] not in COUNTS else _sizes(present)
    if sizes is None:
        return None
    if set(present) <= COUNTS.keys():
        return Units(chunked, _factors(encoded, [sizes.get(unit, 1.0) for unit in units]), "", _multiples(present))
    if has_bare:
        chunked = pc.if_else(pa.chunked_array([is_not_zero]), pa.scalar(None, pa.string()), chunked)
    smallest = min(sizes, key=lambda unit: sizes[unit])
    if len(present) == 1:
        return Units(chunked, None, smallest, f"values are in {smallest}")
    scale = [sizes.get(unit, sizes[smallest]) / sizes[smallest] for unit in units]
    others = ", ".join(sorted(set(present) - {smallest}))
    return Units(
        chunked, _factors(encoded, scale), smallest, f"values are in {smallest}; cells in {others} are converted"
    )


def _any(cells: Any, pattern: str) -> bool:
    import pyarrow.compute as pc

    return bool(pc.any(pc.match_substring_regex(cells, pattern), min_count=0).as_py())


def _multiples(present: list[str]) -> str:
    return f"the suffixes {', '.join(present)} are read as multiples"


def _factors(encoded: Any, sizes: list[float]) -> np.ndarray:
    import pyarrow.compute as pc

    codes = np.asarray(pc.fill_null(encoded.indices, 0).to_numpy(zero_copy_only=False), np.int64)
    return np.asarray(sizes, np.float64)[codes]


def _sizes(units: list[str]) -> dict[str, float] | None:
    """Return the relative sizes of units, or None if a unit is unknown or they measure different quantities."""
    for kind in (TIMES, COUNTS):
        if all(unit in kind for unit in units):
            return {unit: kind[unit] for unit in units}
    for bases, prefixes in ((DATA, SI | BINARY), (DATA_RATES, SI | BINARY), (PREFIXED, SI)):
        for base in bases:
            found = {unit: prefixes.get(unit.removesuffix(base)) for unit in units if unit.endswith(base)}
            if len(found) == len(units) and all(found.values()):
                return {unit: float(size or 1.0) for unit, size in found.items()}
    return None


def named(name: str, unit: str) -> str:
    """Return the name of a column with its unit, unless it already has the unit."""
    if not unit or re.search(rf"(^|[\s(\[_]){re.escape(unit)}($|[\s)\]])", name):
        return name
    return f"{name} ({unit})"

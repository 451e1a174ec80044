"""Files with numbers and missing values as people write them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.data.kind import (
    HOURS,
    ROWS,
    VALUES,
    Kind,
    decimal_comma,
    plain,
    table,
)

# Commas for points and points for commas.
SWAPPED = str.maketrans(",.", ".,")


def cells(name: str, write: Any, *, column: str = "y", by: str = ";", **more: Any) -> Kind:
    """Values in a form of writing. `values` is what is read of them, where it differs from `given`."""
    given = more.pop("given", VALUES)
    content = table(["time", "y"], [t.isoformat() for t in HOURS], [write(value) for value in given], by=by)
    return plain(name, content, HOURS, column, **{"values": given, **more})


def numbers() -> Iterator[Kind]:
    """Numbers with units."""
    yield cells("one unit", lambda v: f"{v} °C", column="y (°C)", note="in °C")
    yield cells("a unit that is no prefix", lambda v: f"{v} mmHg", column="y (mmHg)")
    yield cells("percent", lambda v: f"{v} %")
    mixed = [500.0 if k % 3 else 2500.0 for k in range(ROWS)]
    for name, small, large, unit in (
        ("kilobytes and megabytes", "{} kB/s", "{} MB/s", "kB/s"),
        ("binary prefixes", "{} MiB", "{} GiB", "MiB"),
        ("seconds and milliseconds", "{:.0f} ms", "{} s", "ms"),
        ("watts and kilowatts", "{:.0f} W", "{} kW", "W"),
    ):
        yield cells(
            name,
            lambda v, a=small, b=large: a.format(v) if v < 1000 else b.format(v / 1000),
            given=mixed,
            values=[2.5 * 1024 if unit == "MiB" and v > 1000 else v for v in mixed],
            column=f"y ({unit})",
            note=f"in {unit}; cells in {large[3:]}",
        )
    few = [*mixed[:2], *[2500.0] * 28]
    yield cells("multiples", lambda v: f"{v:.0f}" if v < 1000 else f"{v / 1000} K", given=few, note="multiples")


def partial() -> Iterator[Kind]:
    """Units that some cells lack."""
    gaps = [None if k in (3, 9, 10) else value for k, value in enumerate(VALUES)]
    for name, few in (("few", 3), ("many", 1)):
        yield cells(
            f"cores and thousandths, {name}",
            lambda v: "2" if v == 2 else f"{1000 * v:.0f}m",
            given=[1.501 if k % 4 < few else 2.0 for k in range(ROWS)],
            note="such as '1501m'",
        )
    for unit, column in ((" KB", "y (KB)"), (" ms", "y (ms)"), ("%", "y")):
        yield cells(
            f"a unit{unit} that some cells lack",
            lambda v, u=unit: "0" if v == 0 else "2" if v is None else f"{v}{u}",
            given=[0.0, *gaps[1:]],
            column=column,
            note="'2' has no unit",
        )
    idle = [5.0 if k % 5 == 0 else 0.0 for k in range(ROWS)]
    yield cells("zeros without the unit", lambda v: f"{v} KB" if v else "0", given=idle, column="y (KB)")
    percent = "'5%' is not a number"
    yield cells("percent in a few cells", lambda v: "5%" if v is None else str(v), given=gaps, note=percent)


def amounts() -> Iterator[Kind]:
    """Signs of currencies, and signs of numbers."""
    large = [round(1000 * value, 2) for value in VALUES]
    signed = [value - 22 for value in range(ROWS)]
    yield cells("euros", lambda v: f"{decimal_comma(v)} €")
    yield cells("dollars", lambda v: f'"${v:,.2f}"', given=large, by=",")
    yield cells("currency before", lambda v: f"EUR {v}", column="y (EUR)")
    yield cells("reais", lambda v: "R$ " + f"{v:,.2f}".translate(SWAPPED), given=large, column="y (R$)")
    yield cells("francs", lambda v: f"CHF {v:,.2f}".replace(",", "'"), given=large, column="y (CHF)")
    yield cells("brackets", lambda v: f"({-v})" if v < 0 else str(v), given=signed, note="brackets")
    yield cells("brackets and currency", lambda v: f"(${-v})" if v < 0 else f"${v}", given=signed)
    yield cells("a minus sign behind", lambda v: f"{-v}-" if v < 0 else str(v), given=signed)
    bounded = [max(v, 20.05) for v in VALUES]
    yield cells("bounds", lambda v: "<20.05" if v < 20.05 else str(v), values=bounded, note="bound")


def separators() -> Iterator[Kind]:
    """Decimal commas, separators of thousands, and switches."""
    large = [round(1000 * value, 2) for value in VALUES]
    small = [round(0.2 + k / 1000, 3) if k != 5 else 1.204 for k in range(ROWS)]
    yield cells("decimal commas in quotes", lambda v: f'"{decimal_comma(v)}"', by=",")
    yield cells(
        "three decimals after a comma",
        lambda v: f'"{v:.3f}"'.replace(".", ","),
        given=small,
        by=",",
        note="commas are decimal marks",
    )
    yield cells("German thousands", lambda v: f"{v:,.2f}".translate(SWAPPED), given=large)
    french = str.maketrans(",.", "\u202f,")
    yield cells("French thousands", lambda v: f"{v:,.2f}".translate(french), given=large)
    yield cells("Swiss thousands", lambda v: f"{v:,.2f}".replace(",", "’"), given=large)
    yield cells(
        "Indian thousands",
        lambda v: f'"1,{v:05,.0f}.5"' if v < 10000 else f'"12,{v:06,.0f}.5"',
        given=large,
        values=[1200000.5 + round(v) if v >= 10000 else 100000.5 + round(v) for v in large],
        by=",",
    )
    switches = [k % 2 for k in range(ROWS)]
    for on, off in (("on", "off"), ("true", "false"), ("ja", "nein"), ("oui", "non")):
        note = f"{on} and {off} are read as 1 and 0"
        yield cells(f"{on} and {off}", lambda v, a=on, b=off: a if v else b, given=switches, note=note)


def missing() -> Iterator[Kind]:
    """Missing values as people write them."""
    gaps = [None if k in (3, 9, 10) else value for k, value in enumerate(VALUES)]
    words = ("unavailable", "unknown", "n/a", "-", "NULL", "#N/A", "nan", "None", "\\N", "--", "?")
    for word in (*words, "-999", "-9999", "9999", "1e20", "9.96921e36", "-99.9", "99999"):
        note = "" if word == "nan" else "are missing values" if word in words else "read as missing"
        yield cells(f"missing as {word}", lambda v, w=word: w if v is None else str(v), given=gaps, note=note)
    yield cells(
        "marks switched off",
        lambda v: "-999" if v is None else str(v),
        given=gaps,
        values=[-999.0 if v is None else v for v in gaps],
        options={"missing": ["none"]},
    )
    own = {"missing": ["7"]}
    yield cells("own marks", lambda v: "7" if v is None else str(v), given=gaps, options=own)
    yield cells("999 among its like", str, given=[float(k * 40 + (k == 25) * -1) for k in range(ROWS)])

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


def cells(name: str, write: Any, *, column: str = "y", by: str = ";", **more: Any) -> Kind:
    """Values in a form of writing."""
    content = table(
        ["time", "y"], [t.isoformat() for t in HOURS], [write(value) for value in more.pop("given", VALUES)], by=by
    )
    return plain(name, content, HOURS, column, **more)


def numbers() -> Iterator[Kind]:
    """Numbers as people write them."""
    large = [round(1000 * value, 2) for value in VALUES]
    signed = [value - 22 for value in range(ROWS)]
    yield cells("one unit", lambda v: f"{v} °C", column="y (°C)", note="in °C")
    yield cells("a unit that is no prefix", lambda v: f"{v} mmHg", column="y (mmHg)")
    mixed = [500.0 if k % 3 else 2500.0 for k in range(ROWS)]
    yield cells(
        "kilobytes and megabytes",
        lambda v: f"{v} kB/s" if v < 1000 else f"{v / 1000} MB/s",
        given=mixed,
        values=mixed,
        column="y (kB/s)",
        note="in kB/s; cells in MB/s",
    )
    yield cells(
        "binary prefixes",
        lambda v: f"{v} MiB" if v < 1000 else f"{v / 1000} GiB",
        given=mixed,
        values=[v if v < 1000 else 2.5 * 1024 for v in mixed],
        column="y (MiB)",
    )
    yield cells(
        "seconds and milliseconds",
        lambda v: f"{v:.0f} ms" if v < 1000 else f"{v / 1000} s",
        given=mixed,
        values=mixed,
        column="y (ms)",
    )
    yield cells(
        "watts and kilowatts",
        lambda v: f"{v:.0f} W" if v < 1000 else f"{v / 1000} kW",
        given=mixed,
        values=mixed,
        column="y (W)",
    )
    yield cells(
        "multiples",
        lambda v: f"{v:.0f}" if v < 1000 else f"{v / 1000} K",
        given=[*mixed[:2], *[2500.0] * 28],
        values=[*mixed[:2], *[2500.0] * 28],
        note="multiples",
    )
    yield cells("percent", lambda v: f"{v} %")
    gaps_in_unit = [None if k in (3, 9, 10) else value for k, value in enumerate(VALUES)]
    for name, few in (("few", 3), ("many", 1)):
        given = [1.501 if k % 4 < few else 2.0 for k in range(ROWS)]
        yield cells(
            f"cores and thousandths, {name}",
            lambda v: "2" if v == 2 else f"{1000 * v:.0f}m",
            given=given,
            values=given,
            note="such as '1501m'",
        )
    for unit, column in ((" KB", "y (KB)"), (" ms", "y (ms)"), ("%", "y")):
        yield cells(
            f"a unit{unit} that some cells lack",
            lambda v, u=unit: "0" if v == 0 else "2" if v is None else f"{v}{u}",
            given=[0.0, *gaps_in_unit[1:]],
            values=[0.0, *gaps_in_unit[1:]],
            column=column,
            note="'2' has no unit",
        )
    idle = [5.0 if k % 5 == 0 else 0.0 for k in range(ROWS)]
    yield cells("zeros without the unit", lambda v: f"{v} KB" if v else "0", given=idle, values=idle, column="y (KB)")
    yield cells(
        "percent in a few cells",
        lambda v: "5%" if v is None else str(v),
        given=gaps_in_unit,
        values=gaps_in_unit,
        note="'5%' is not a number",
    )
    yield cells("euros", lambda v: f"{decimal_comma(v)} €")
    yield cells("dollars", lambda v: f'"${v:,.2f}"', given=large, values=large, by=",")
    yield cells("currency before", lambda v: f"EUR {v}", column="y (EUR)")
    yield cells(
        "reais",
        lambda v: "R$ " + f"{v:,.2f}".translate(str.maketrans(",.", ".,")),
        given=large,
        values=large,
        column="y (R$)",
    )
    yield cells("francs", lambda v: f"CHF {v:,.2f}".replace(",", "'"), given=large, values=large, column="y (CHF)")
    yield cells("brackets", lambda v: f"({-v})" if v < 0 else str(v), given=signed, values=signed, note="brackets")
    yield cells("brackets and currency", lambda v: f"(${-v})" if v < 0 else f"${v}", given=signed, values=signed)
    yield cells("a minus sign behind", lambda v: f"{-v}-" if v < 0 else str(v), given=signed, values=signed)
    yield cells(
        "bounds", lambda v: "<20.05" if v < 20.05 else str(v), values=[max(v, 20.05) for v in VALUES], note="bound"
    )
    yield cells("decimal commas in quotes", lambda v: f'"{decimal_comma(v)}"', by=",")
    small = [round(0.2 + k / 1000, 3) if k != 5 else 1.204 for k in range(ROWS)]
    yield cells(
        "three decimals after a comma",
        lambda v: f'"{v:.3f}"'.replace(".", ","),
        given=small,
        values=small,
        by=",",
        note="decimal commas",
    )
    yield cells(
        "German thousands", lambda v: f"{v:,.2f}".translate(str.maketrans(",.", ".,")), given=large, values=large
    )
    yield cells(
        "French thousands", lambda v: f"{v:,.2f}".translate(str.maketrans(",.", "\u202f,")), given=large, values=large
    )
    yield cells("Swiss thousands", lambda v: f"{v:,.2f}".replace(",", "’"), given=large, values=large)
    yield cells(
        "Indian thousands",
        lambda v: f'"1,{v:05,.0f}.5"' if v < 10000 else f'"12,{v:06,.0f}.5"',
        given=large,
        values=[1200000.5 + round(v) if v >= 10000 else 100000.5 + round(v) for v in large],
        by=",",
    )
    switches = [k % 2 for k in range(ROWS)]
    for on, off in (("on", "off"), ("true", "false"), ("ja", "nein"), ("oui", "non")):
        yield cells(
            f"{on} and {off}",
            lambda v, a=on, b=off: a if v else b,
            given=switches,
            values=switches,
            note=f"{on} and {off} are 1 and 0",
        )


def missing() -> Iterator[Kind]:
    """Missing values as people write them."""
    gaps = [None if k in (3, 9, 10) else value for k, value in enumerate(VALUES)]
    for word in ("unavailable", "unknown", "n/a", "-", "NULL", "#N/A", "nan", "None", "\\N", "--", "?"):
        yield cells(
            f"missing as {word}",
            lambda v, w=word: w if v is None else str(v),
            given=gaps,
            values=gaps,
            note="are missing values" if word != "nan" else "",
        )
    for mark in ("-999", "-9999", "9999", "1e20", "9.96921e36", "-99.9", "99999"):
        yield cells(
            f"missing as {mark}",
            lambda v, w=mark: w if v is None else str(v),
            given=gaps,
            values=gaps,
            note="read as missing",
        )
    yield cells(
        "marks switched off",
        lambda v: "-999" if v is None else str(v),
        given=gaps,
        values=[-999.0 if v is None else v for v in gaps],
        options={"missing": ["none"]},
    )
    yield cells(
        "own marks", lambda v: "7" if v is None else str(v), given=gaps, values=gaps, options={"missing": ["7"]}
    )
    counts = [float(k * 40 + (k == 25) * -1) for k in range(ROWS)]
    yield cells("999 among its like", str, given=counts, values=counts)

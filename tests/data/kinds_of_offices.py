"""Files of banks, shops and offices, written before anything was run on them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from tests.data.kind import (
    COUNTS,
    DAYS,
    HOURS,
    MONTHS,
    OTHERS,
    ROWS,
    VALUES,
    Kind,
    decimal_comma,
    needs_key,
    rows_of,
    seconds,
    series_of,
)


def offices() -> Iterator[Kind]:
    """Exports of banks, shops and trackers."""
    yield needs_key(
        "ING",
        rows_of(
            '"Datum";"Naam / Omschrijving";"Rekening";"Code";"Af Bij";"Bedrag (EUR)"\n',
            lambda k: (
                f'"{DAYS[k]:%Y%m%d}";"Shop {k % 4}";"NL01INGB0001";"BA";"{"Af" if k % 3 else "Bij"}";'
                f'"{decimal_comma(VALUES[k])}"'
            ),
        ),
        column="Af Bij",
    )
    yield needs_key(
        "Soll und Haben",
        rows_of(
            "Buchungstag;Verwendungszweck;Umsatz;S/H\n",
            lambda k: f"{DAYS[k]:%d.%m.%Y};Miete {k};{decimal_comma(VALUES[k])};{'H' if k % 4 else 'S'}",
        ),
        column="S/H",
    )
    accounts = "".join(
        f"{t:%Y-%m-%d},{name},{v}\n"
        for t, v, o in zip(DAYS, VALUES, OTHERS, strict=True)
        for name, v in (("Total", round(v + o, 2)), ("North", v), ("South", o))
    )
    yield Kind(
        "totals among regions",
        f"date,region,sales\n{accounts}".encode(),
        {
            (n,): (seconds(DAYS), {"sales": v})
            for n, v in (
                ("Total", [round(v + o, 2) for v, o in zip(VALUES, OTHERS, strict=True)]),
                ("North", VALUES),
                ("South", OTHERS),
            )
        },
    )


def sums() -> Iterator[Kind]:
    """Sums among the rows."""
    weekly = "".join(
        f"{DAYS[k]:%d.%m.%Y};{decimal_comma(VALUES[k])}\n"
        + (f"Summe KW {k // 7 + 1};{decimal_comma(sum(VALUES[k - 6 : k + 1]))}\n" if k % 7 == 6 else "")
        for k in range(ROWS)
    )
    yield series_of("sums of weeks", f"Datum;Umsatz\n{weekly}".encode(), DAYS, {"Umsatz": VALUES})
    monthly = "".join(
        f"{DAYS[k]:%Y-%m-%d},{VALUES[k]}\n" + (f"{DAYS[k]:%Y-%m},{round(sum(VALUES[: k + 1]), 2)}\n" if k == 19 else "")
        for k in range(ROWS)
    )
    yield series_of(
        "a month among days", f"date,sales\n{monthly}".encode(), DAYS, {"sales": VALUES}, note="'2024-01' in row 22"
    )


def mixed() -> Iterator[Kind]:
    """Units, currencies and times that change within a column, and a table on its side."""
    yield needs_key(
        "units that change",
        rows_of(
            "time,temp,unit\n",
            lambda k: f"{HOURS[k]},{VALUES[k] if k < 15 else 32 + 1.8 * VALUES[k]:.2f},{'C' if k < 15 else 'F'}",
        ),
        column="unit",
    )
    yield Kind(
        "currencies that change",
        rows_of("date,amount,currency\n", lambda k: f"{DAYS[k]:%Y-%m-%d},{VALUES[k]},{'EUR' if k % 3 else 'USD'}"),
        {
            (name,): (seconds(times), {"amount": values})
            for name, times, values in (
                ("USD", DAYS[::3], VALUES[::3]),
                ("EUR", [t for k, t in enumerate(DAYS) if k % 3], [v for k, v in enumerate(VALUES) if k % 3]),
            )
        },
        note="series: one for each key in column 'currency'",
    )
    yield Kind(
        "epochs in seconds and milliseconds",
        rows_of("time,y\n", lambda k: f"{(1704067200 + 60 * k) * (1 if k < 15 else 1000)},{VALUES[k]}"),
        refused="years away from most others; specify --time 'time'",
        mended={"time": "time"},
    )
    yield Kind(
        "transposed",
        (
            "metric,"
            + ",".join(f"{t:%Y-%m-%d}" for t in DAYS)
            + "\nvisits,"
            + ",".join(map(str, VALUES))
            + "\nsales,"
            + ",".join(map(str, OTHERS))
            + "\n"
        ).encode(),
        {("visits",): (seconds(DAYS), {"value": VALUES}), ("sales",): (seconds(DAYS), {"value": OTHERS})},
    )


def statements() -> Iterator[Kind]:
    """Statements of banks, in formats of their own."""
    entry = '<Ntry><Amt Ccy="EUR">{}</Amt><CdtDbtInd>{}</CdtDbtInd><BookgDt><Dt>{:%Y-%m-%d}</Dt></BookgDt></Ntry>'
    camt = "".join(
        entry.format(v, "DBIT" if k % 3 else "CRDT", t) for k, (t, v) in enumerate(zip(DAYS, VALUES, strict=True))
    )
    yield needs_key(
        "CAMT.053",
        f'<?xml version="1.0"?><Document><BkToCstmrStmt><Stmt>{camt}</Stmt></BkToCstmrStmt></Document>'.encode(),
        column="CdtDbtInd",
    )


def statistics() -> Iterator[Kind]:
    """Tables of statistics and counters."""
    yield Kind(
        "INSEE",
        (
            '"Libellé";"idBank";"Dernière mise à jour";"Période";'
            + ";".join(f'"{t:%Y-%m}"' for t in MONTHS)
            + '\n"Indice";"001";"15/02/2024";"";'
            + ";".join(f'"{decimal_comma(v)}"' for v in VALUES)
            + '\n"Codes";"001";"15/02/2024";"";'
            + ";".join('"A"' for _ in VALUES)
            + "\n"
        ).encode(),
        {("Indice",): (seconds(MONTHS), {"value": VALUES})},
        note="rows without numbers are left out: 'Codes'",
    )
    years = list(range(1990, 1990 + ROWS))
    yield Kind(
        "Gapminder",
        (
            "country,"
            + ",".join(map(str, years))
            + "".join(
                f"\n{c}," + ",".join(f"{v / 10:.2f}k" if k > 9 else f"{100 * v:.0f}" for k, v in enumerate(values))
                for c, values in (("Chad", VALUES), ("Peru", OTHERS))
            )
        ).encode(),
        {
            (c,): (
                seconds([datetime(y, 1, 1) for y in years]),
                {"value": [round(v / 10, 2) * 1000 if k > 9 else round(100 * v) for k, v in enumerate(values)]},
            )
            for c, values in (("Chad", VALUES), ("Peru", OTHERS))
        },
    )
    week = ("lundi", "mardi", "mercredi", "jeudi", "vendredi", "samedi", "dimanche")
    yield series_of(
        "Eco-Counter",
        rows_of(
            "Date;Rue A;Rue B\n",
            lambda k: f"{week[DAYS[k].weekday()]} {DAYS[k].day} janvier 2024;{COUNTS[k]};{COUNTS[k] + 7 * (k % 3)}",
        ),
        DAYS,
        {"Rue A": COUNTS, "Rue B": [c + 7 * (k % 3) for k, c in enumerate(COUNTS)]},
    )

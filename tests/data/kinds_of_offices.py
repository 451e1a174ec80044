"""Files of banks, shops and offices, written before anything was run on them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from tests.data.kind import (
    COUNTS,
    DAYS,
    HOURS,
    MONTHS,
    OTHERS,
    QUARTER_DAYS,
    ROWS,
    TENS,
    VALUES,
    WEEKS,
    YEARS,
    Kind,
    decimal_comma,
    export,
    rows_of,
    seconds,
    series_of,
)

WRITTEN = (
    # Exports of banks, shops and trackers.
    export("mBank", DAYS, {"#Kwota (PLN)": [-v for v in VALUES]},
           "mBank S.A. Bankowość Detaliczna;\n#Klient;\nJan Kowalski;\n\n#Data operacji;#Opis operacji;#Kwota;\n",
           lambda r: f'{r.t:%Y-%m-%d};"ZAKUP {r.k}";{decimal_comma(-r.v)} PLN;'),
    export("BBVA", DAYS, {"Importe": [-v for v in VALUES], "Disponible": [1000.55 + c % 1000 for c in COUNTS]},
           "F.Valor;Fecha;Concepto;Movimiento;Importe;Divisa;Disponible;Divisa\n",
           lambda r: (f"{r.t:%d/%m/%Y};{r.t:%d/%m/%Y};Pago;Tarjeta {r.k};{decimal_comma(-r.v)};EUR;"
                      f"1.{r.c % 1000:03d},55;EUR")),
    export("Square", [t.replace(hour=19, minute=5, second=10) for t in DAYS],
           {"Gross Sales": VALUES, "Net Sales": OTHERS},
           '"Date","Time","Time Zone","Gross Sales","Net Sales","Event Type"\n',
           lambda r: f'"{r.t:%Y-%m-%d}","14:05:10","Eastern Time (US & Canada)","${r.v}","${r.o}","Payment"',
           note="zone America/New_York, in column 'Time Zone'"),
    export("Jira", [t.replace(hour=9, minute=15) for t in DAYS], {"Custom field (Story Points)": VALUES},
           "Summary,Issue key,Issue id,Created,Custom field (Story Points),Sprint,Sprint\n",
           lambda r: f'"Do {r.k}",AB-{r.k},{10000 + r.k},{r.t:%d/%b/%y} 9:15 AM,{r.v},S1,S2'),
    export("YNAB", DAYS, {"Outflow": VALUES},
           '"Account","Flag","Date","Payee","Category","Memo","Outflow","Inflow","Cleared"\n',
           lambda r: f'"Giro","","{r.t:%d.%m.%Y}","Shop {r.k}","Food","",{r.v}€,0.00€,"Cleared"'),
    export("units that change in a cell", HOURS,
           {"temp (°C)": [v if k < 15 else (round(32 + 1.8 * v, 2) - 32) / 1.8 for k, v in enumerate(VALUES)]},
           "time,temp\n", lambda r: f"{r.t},{r.v if r.k < 15 else 32 + 1.8 * r.v:.2f} {'°C' if r.k < 15 else '°F'}",
           note="in °C; cells in °F are converted"),
    export("footnotes in cells", YEARS, {"Output": VALUES}, "Year,Output\n",
           lambda r: f"{r.t.year},{r.v}{'[1]' if r.k == 7 else ' (p)' if r.k > 27 else ''}"),
    export("superscripts", YEARS, {"Output": VALUES}, "Year,Output\n",
           lambda r: f"{r.t.year},{r.v}{'¹' if r.k == 7 else 'ᵖ' if r.k > 27 else ''}"),
    export("six hours", QUARTER_DAYS, {"temp": VALUES}, "time,temp\n",
           lambda r: f"{r.t},{r.v}"),
    # Banks, shops and people.
    export("Notion", [t.replace(hour=9) for t in DAYS], {"Weight": VALUES},
           "Name,Date,Weight\n", lambda r: f'Entry {r.k},"{r.t:%B} {r.t.day}, 2024 9:00 AM",{r.v}'),
    export("Omron", [t.replace(hour=7, minute=5) for t in DAYS],
           {"Systolic (mmHg)": [100 + k % 17 for k in range(ROWS)],
            "Diastolic (mmHg)": [70 + k % 5 for k in range(ROWS)], "Pulse (bpm)": [60 + k % 11 for k in range(ROWS)]},
           '"Date","Time","Systolic (mmHg)","Diastolic (mmHg)","Pulse (bpm)","Notes"\n',
           lambda r: f'"{r.t:%b} {r.t.day}, 2024","07:05",{100 + r.k % 17},{70 + r.k % 5},{60 + r.k % 11},"-"'),
    export("Amazon settlement", [t + timedelta(hours=8, minutes=10) for t in DAYS],
           {"quantity": [1 + k % 3 for k in range(ROWS)], "total": VALUES},
           '"Includes Amazon Marketplace transactions"\n"All amounts in USD, unless specified"\n'
           '"date/time","settlement id","type","order id","quantity","total"\n',
           lambda r: f'"{r.t:%b} {r.t.day}, 2024 12:10:00 AM PST","123","Order","11-{r.k}","{1 + r.k % 3}","{r.v}"'),
    export("Revolut", [t.replace(hour=10, second=k % 10) for k, t in enumerate(DAYS)],
           {"Amount": [-v for v in VALUES], "Balance": [1000 + o for o in OTHERS]},
           "Type,Product,Started Date,Completed Date,Description,Amount,Fee,Currency,State,Balance\n",
           lambda r: (f"CARD_PAYMENT,Current,{r.t:%Y-%m-%d %H:%M:%S},{r.t + timedelta(days=1):%Y-%m-%d 04:11:12},"
                      f"Shop,{-r.v},0.00,EUR,COMPLETED,{1000 + r.o}")),
    export("Credit Agricole", DAYS,
           {"Débit euros": [v if k % 3 else None for k, v in enumerate(VALUES)],
            "Crédit euros": [None if k % 3 else v for k, v in enumerate(VALUES)]},
           "Téléchargement du 31/01/2024;\n\nCompte n° 123;\nSolde au 31/01/2024 1 234,56 €\n\n"
           "Date;Libellé;Débit euros;Crédit euros;\n",
           lambda r: (f'{r.t:%d/%m/%Y};"CARTE {r.k}";{r.d if r.k % 3 else ""};'
                      f"{'' if r.k % 3 else r.d};")),
    export("hledger register", DAYS,
           {"amount (EUR)": VALUES, "total (EUR)": [round(sum(VALUES[: k + 1]), 2) for k in range(ROWS)]},
           '"txnidx","date","code","description","account","amount","total"\n',
           lambda r: (f'"{r.k + 1}","{r.t:%Y-%m-%d}","","shop","expenses:food","EUR {r.v}","EUR '
                      f'{sum(VALUES[: r.k + 1]):.2f}"')),
    export("ILINet", WEEKS, {"% WEIGHTED ILI": VALUES, "%UNWEIGHTED ILI": OTHERS, "ILITOTAL": COUNTS},
           "PERCENTAGE OF VISITS FOR INFLUENZA-LIKE-ILLNESS REPORTED BY SENTINEL PROVIDERS\n"
           "REGION TYPE,REGION,YEAR,WEEK,% WEIGHTED ILI,%UNWEIGHTED ILI,ILITOTAL\n",
           lambda r: f"National,X,2024,{r.k + 1},{r.v},{r.o},{r.c}"),
    export("Toggl", DAYS, {"Duration (s)": [3600 + 60 * (k + 10) for k in range(ROWS)]},
           "User,Project,Start date,Start time,End date,End time,Duration\n",
           lambda r: f"Jo,Site,{r.t:%Y-%m-%d},09:00:00,{r.t:%Y-%m-%d},10:{r.k + 10}:00,01:{r.k + 10}:00"),
    export("rows by ten minutes", TENS, {"Außentemperatur °C": VALUES},
           "zeit;Außentemperatur °C\n", lambda r: f"{r.t:%d.%m.%y %H:%M};{r.d}"),
)  # fmt: skip


def offices() -> Iterator[Kind]:
    """Exports of banks, shops and trackers."""
    yield Kind(
        "ING",
        rows_of(
            '"Datum";"Naam / Omschrijving";"Rekening";"Code";"Af Bij";"Bedrag (EUR)"\n',
            lambda k: (
                f'"{DAYS[k]:%Y%m%d}";"Shop {k % 4}";"NL01INGB0001";"BA";"{"Af" if k % 3 else "Bij"}";'
                f'"{decimal_comma(VALUES[k])}"'
            ),
        ),
        refused="--by 'Af Bij'",
        mended={"by": ["Af Bij"]},
    )
    yield Kind(
        "Soll und Haben",
        rows_of(
            "Buchungstag;Verwendungszweck;Umsatz;S/H\n",
            lambda k: f"{DAYS[k]:%d.%m.%Y};Miete {k};{decimal_comma(VALUES[k])};{'H' if k % 4 else 'S'}",
        ),
        refused="--by 'S/H'",
        mended={"by": ["S/H"]},
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
    yield Kind(
        "units that change",
        rows_of(
            "time,temp,unit\n",
            lambda k: f"{HOURS[k]},{VALUES[k] if k < 15 else 32 + 1.8 * VALUES[k]:.2f},{'C' if k < 15 else 'F'}",
        ),
        refused="--by 'unit'",
        mended={"by": ["unit"]},
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
        note="series: column 'currency'",
    )
    yield Kind(
        "epochs in seconds and milliseconds",
        rows_of("time,y\n", lambda k: f"{(1704067200 + 60 * k) * (1 if k < 15 else 1000)},{VALUES[k]}"),
        refused="years from others; give --time 'time'",
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
    yield Kind(
        "CAMT.053",
        f'<?xml version="1.0"?><Document><BkToCstmrStmt><Stmt>{camt}</Stmt></BkToCstmrStmt></Document>'.encode(),
        refused="--by 'CdtDbtInd'",
        mended={"by": ["CdtDbtInd"]},
    )
    ofx = "".join(
        f"<STMTTRN><TRNTYPE>DEBIT<DTPOSTED>{t:%Y%m%d120000}<TRNAMT>{-v}<FITID>{k}<NAME>Shop</STMTTRN>\n"
        for k, (t, v) in enumerate(zip(DAYS, VALUES, strict=True))
    )
    yield series_of(
        "OFX",
        f"OFXHEADER:100\nDATA:OFXSGML\nVERSION:102\n\n<OFX><BANKTRANLIST>\n{ofx}</BANKTRANLIST></OFX>".encode(),
        [t.replace(hour=12) for t in DAYS],
        {"TRNAMT": [-v for v in VALUES]},
    )
    mt = "".join(
        f":61:{t:%y%m%d%m%d}D{decimal_comma(v)}NTRFNONREF\n:86:Miete {k}\n"
        for k, (t, v) in enumerate(zip(DAYS, VALUES, strict=True))
    )
    yield series_of(
        "MT940",
        f":20:START\n:25:123/456\n:60F:C240101EUR1000,00\n{mt}:62F:C240131EUR1,00\n-\n".encode(),
        DAYS,
        {"amount (EUR)": [-v for v in VALUES]},
    )
    qif = "".join(f"D{t:%m/%d'%y}\nT{-v}\nPShop\n^\n" for t, v in zip(DAYS, VALUES, strict=True))
    yield series_of("QIF", f"!Type:Bank\n{qif}".encode(), DAYS, {"amount": [-v for v in VALUES]})


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

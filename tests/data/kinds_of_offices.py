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
    Kind,
    decimal_comma,
    rows_of,
    seconds,
    series_of,
)


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
    yield series_of(
        "mBank",
        rows_of(
            "mBank S.A. Bankowość Detaliczna;\n#Klient;\nJan Kowalski;\n\n#Data operacji;#Opis operacji;#Kwota;\n",
            lambda k: f'{DAYS[k]:%Y-%m-%d};"ZAKUP {k}";{decimal_comma(-VALUES[k])} PLN;',
        ),
        DAYS,
        {"#Kwota (PLN)": [-v for v in VALUES]},
    )
    yield series_of(
        "BBVA",
        rows_of(
            "F.Valor;Fecha;Concepto;Movimiento;Importe;Divisa;Disponible;Divisa\n",
            lambda k: (
                f"{DAYS[k]:%d/%m/%Y};{DAYS[k]:%d/%m/%Y};Pago;Tarjeta {k};{decimal_comma(-VALUES[k])};EUR;"
                f"1.{COUNTS[k] % 1000:03d},55;EUR"
            ),
        ),
        DAYS,
        {"Importe": [-v for v in VALUES], "Disponible": [1000.55 + c % 1000 for c in COUNTS]},
    )
    yield series_of(
        "Square",
        rows_of(
            '"Date","Time","Time Zone","Gross Sales","Net Sales","Event Type"\n',
            lambda k: (
                f'"{DAYS[k]:%Y-%m-%d}","14:05:10","Eastern Time (US & Canada)","${VALUES[k]}","${OTHERS[k]}","Payment"'
            ),
        ),
        [t.replace(hour=19, minute=5, second=10) for t in DAYS],
        {"Gross Sales": VALUES, "Net Sales": OTHERS},
        note="zone America/New_York, in column 'Time Zone'",
    )
    yield series_of(
        "Jira",
        rows_of(
            "Summary,Issue key,Issue id,Created,Custom field (Story Points),Sprint,Sprint\n",
            lambda k: f'"Do {k}",AB-{k},{10000 + k},{DAYS[k]:%d/%b/%y} 9:15 AM,{VALUES[k]},S1,S2',
        ),
        [t.replace(hour=9, minute=15) for t in DAYS],
        {"Custom field (Story Points)": VALUES},
    )
    yield series_of(
        "YNAB",
        rows_of(
            '"Account","Flag","Date","Payee","Category","Memo","Outflow","Inflow","Cleared"\n',
            lambda k: f'"Giro","","{DAYS[k]:%d.%m.%Y}","Shop {k}","Food","",{VALUES[k]}€,0.00€,"Cleared"',
        ),
        DAYS,
        {"Outflow": VALUES},
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
    yield Kind(
        "units that change",
        rows_of(
            "time,temp,unit\n",
            lambda k: f"{HOURS[k]},{VALUES[k] if k < 15 else 32 + 1.8 * VALUES[k]:.2f},{'C' if k < 15 else 'F'}",
        ),
        refused="--by 'unit'",
        mended={"by": ["unit"]},
    )
    yield series_of(
        "units that change in a cell",
        rows_of(
            "time,temp\n",
            lambda k: f"{HOURS[k]},{VALUES[k] if k < 15 else 32 + 1.8 * VALUES[k]:.2f} {'°C' if k < 15 else '°F'}",
        ),
        HOURS,
        {"temp (°C)": [v if k < 15 else (round(32 + 1.8 * v, 2) - 32) / 1.8 for k, v in enumerate(VALUES)]},
        note="in °C; cells in °F are converted",
    )
    yield series_of(
        "footnotes in cells",
        rows_of("Year,Output\n", lambda k: f"{1990 + k},{VALUES[k]}{'[1]' if k == 7 else ' (p)' if k > 27 else ''}"),
        [datetime(1990 + k, 1, 1) for k in range(ROWS)],
        {"Output": VALUES},
    )
    yield series_of(
        "superscripts",
        rows_of("Year,Output\n", lambda k: f"{1990 + k},{VALUES[k]}{'¹' if k == 7 else 'ᵖ' if k > 27 else ''}"),
        [datetime(1990 + k, 1, 1) for k in range(ROWS)],
        {"Output": VALUES},
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
    yield series_of(
        "six hours", rows_of("time,temp\n", lambda k: f"{QUARTER_DAYS[k]},{VALUES[k]}"), QUARTER_DAYS, {"temp": VALUES}
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


def accounts() -> Iterator[Kind]:
    """Banks, shops and people."""
    yield series_of(
        "Notion",
        rows_of("Name,Date,Weight\n", lambda k: f'Entry {k},"{DAYS[k]:%B} {DAYS[k].day}, 2024 9:00 AM",{VALUES[k]}'),
        [t.replace(hour=9) for t in DAYS],
        {"Weight": VALUES},
    )
    yield series_of(
        "Omron",
        rows_of(
            '"Date","Time","Systolic (mmHg)","Diastolic (mmHg)","Pulse (bpm)","Notes"\n',
            lambda k: f'"{DAYS[k]:%b} {DAYS[k].day}, 2024","07:05",{100 + k % 17},{70 + k % 5},{60 + k % 11},"-"',
        ),
        [t.replace(hour=7, minute=5) for t in DAYS],
        {
            "Systolic (mmHg)": [100 + k % 17 for k in range(ROWS)],
            "Diastolic (mmHg)": [70 + k % 5 for k in range(ROWS)],
            "Pulse (bpm)": [60 + k % 11 for k in range(ROWS)],
        },
    )
    yield series_of(
        "Amazon settlement",
        rows_of(
            '"Includes Amazon Marketplace transactions"\n"All amounts in USD, unless specified"\n'
            '"date/time","settlement id","type","order id","quantity","total"\n',
            lambda k: (
                f'"{DAYS[k]:%b} {DAYS[k].day}, 2024 12:10:00 AM PST","123","Order","11-{k}","{1 + k % 3}","{VALUES[k]}"'
            ),
        ),
        [t + timedelta(hours=8, minutes=10) for t in DAYS],
        {"quantity": [1 + k % 3 for k in range(ROWS)], "total": VALUES},
    )
    yield series_of(
        "Revolut",
        rows_of(
            "Type,Product,Started Date,Completed Date,Description,Amount,Fee,Currency,State,Balance\n",
            lambda k: (
                f"CARD_PAYMENT,Current,{DAYS[k]:%Y-%m-%d 10:00:0{k % 10}},"
                f"{DAYS[k] + timedelta(days=1):%Y-%m-%d 04:11:12},"
                f"Shop,{-VALUES[k]},0.00,EUR,COMPLETED,{1000 + OTHERS[k]}"
            ),
        ),
        [t.replace(hour=10, second=k % 10) for k, t in enumerate(DAYS)],
        {"Amount": [-v for v in VALUES], "Balance": [1000 + o for o in OTHERS]},
    )
    yield series_of(
        "Credit Agricole",
        rows_of(
            "Téléchargement du 31/01/2024;\n\nCompte n° 123;\nSolde au 31/01/2024 1 234,56 €\n\nDate;"
            "Libellé;Débit euros;Crédit euros;\n",
            lambda k: (
                f'{DAYS[k]:%d/%m/%Y};"CARTE {k}";{decimal_comma(VALUES[k]) if k % 3 else ""};'
                f"{'' if k % 3 else decimal_comma(VALUES[k])};"
            ),
        ),
        DAYS,
        {
            "Débit euros": [v if k % 3 else None for k, v in enumerate(VALUES)],
            "Crédit euros": [None if k % 3 else v for k, v in enumerate(VALUES)],
        },
    )
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
    yield series_of(
        "hledger register",
        rows_of(
            '"txnidx","date","code","description","account","amount","total"\n',
            lambda k: (
                f'"{k + 1}","{DAYS[k]:%Y-%m-%d}","","shop","expenses:food","EUR {VALUES[k]}","EUR '
                f'{sum(VALUES[: k + 1]):.2f}"'
            ),
        ),
        DAYS,
        {"amount (EUR)": VALUES, "total (EUR)": [round(sum(VALUES[: k + 1]), 2) for k in range(ROWS)]},
    )
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
    yield series_of(
        "ILINet",
        rows_of(
            "PERCENTAGE OF VISITS FOR INFLUENZA-LIKE-ILLNESS REPORTED BY SENTINEL PROVIDERS\n"
            "REGION TYPE,REGION,YEAR,WEEK,% WEIGHTED ILI,%UNWEIGHTED ILI,ILITOTAL\n",
            lambda k: f"National,X,2024,{k + 1},{VALUES[k]},{OTHERS[k]},{COUNTS[k]}",
        ),
        WEEKS,
        {"% WEIGHTED ILI": VALUES, "%UNWEIGHTED ILI": OTHERS, "ILITOTAL": COUNTS},
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
    yield series_of(
        "Toggl",
        rows_of(
            "User,Project,Start date,Start time,End date,End time,Duration\n",
            lambda k: f"Jo,Site,{DAYS[k]:%Y-%m-%d},09:00:00,{DAYS[k]:%Y-%m-%d},10:{k + 10}:00,01:{k + 10}:00",
        ),
        DAYS,
        {"Duration (s)": [3600 + 60 * (k + 10) for k in range(ROWS)]},
    )
    yield series_of(
        "rows by ten minutes",
        rows_of("zeit;Außentemperatur °C\n", lambda k: f"{TENS[k]:%d.%m.%y %H:%M};{decimal_comma(VALUES[k])}"),
        TENS,
        {"Außentemperatur °C": VALUES},
    )

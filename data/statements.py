"""Read the entries of bank statements in the formats MT940 and QIF."""

from __future__ import annotations

import re
from typing import Final

from rfa.data.json_values import Rows

MT940: Final = re.compile(r"(?:\{[^\n]*\n)?:20:")
# An entry has a value date, an entry date, debit or credit, the third letter of the currency, and an amount.
ENTRY: Final = re.compile(r"(?m)^:61:(\d{2})(\d\d)(\d\d)(?:\d{4})?(R?[CD])[A-Z]?(\d+),(\d*)")
BALANCE: Final = re.compile(r"(?m)^:60[FM]:[CD]\d{6}([A-Z]{3})")
QIF: Final = re.compile(r"!Type:(?!Cat|Class|Memorized)\w+\s*\n")
# The date and the amount of a record, which ends with ^. QIF may write the year after an apostrophe.
DATED: Final = re.compile(r"(?m)^D(.+?)\s*$")
AMOUNT: Final = re.compile(r"(?m)^[TU]([-+]?[\d.,]+)\s*$")
DATE, VALUE = "date", "amount"
MOST_CHARACTERS: Final = 2**26


def read_statement(text: str) -> Rows | None:
    """Return the entries of a bank statement with signed amounts, or None for other text.

    Raises:
        ValueError: If the file is too large, or has no entries.
    """
    is_mt940, is_qif = MT940.match(text) is not None, QIF.match(text) is not None
    if not (is_mt940 or is_qif):
        return None
    if len(text) > MOST_CHARACTERS:
        raise ValueError("a bank statement may have at most 64 MiB; split the file")
    dates, amounts, name = _entries(text) if is_mt940 else _records(text)
    if not dates:
        raise ValueError("the bank statement has no entries with a date and an amount; save the entries as CSV")
    found = Rows(note=f"each row is an entry of a bank statement in the format {'MT940' if is_mt940 else 'QIF'}")
    found.add({}, **{DATE: dates, name: amounts})
    return found


def _entries(text: str) -> tuple[list[str], list[str], str]:
    entries = ENTRY.findall(text)
    dates = [f"20{year}-{month}-{day}" for year, month, day, *_ in entries]
    # A reversed credit takes money from the account, as a debit does.
    amounts = [f"{'-' if mark in ('D', 'RC') else ''}{whole}.{part or 0}" for *_, mark, whole, part in entries]
    currencies = {*BALANCE.findall(text)}
    return dates, amounts, f"{VALUE} ({currencies.pop()})" if len(currencies) == 1 else VALUE


def _records(text: str) -> tuple[list[str], list[str], str]:
    dates, amounts = [], []
    for record in re.split(r"(?m)^\^", text):
        date, amount = DATED.search(record), AMOUNT.search(record)
        if date is not None and amount is not None:
            dates.append(re.sub(r"' ?", "/", date[1]).replace("/ ", "/"))
            amounts.append(amount[1])
    return dates, amounts, VALUE

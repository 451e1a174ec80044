"""Determine the rows of each series of a table by key columns, which are specified or detected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from rfa.data.clock_choice import numeric_sample
from rfa.data.clock_parts import is_part
from rfa.data.series import Key
from rfa.data.table import Table, combine_chunks

MOST_SERIES: Final = 100_000
# Names of columns that label series independently of the times.
KEY_NAMES: Final = (
    "unique_id", "entity_id", "item_id", "series_id", "statistic_id", "ts_id", "sensor_id", "metric_name", "_field",
)  # fmt: skip
# Maximum fraction of distinct times in a table of several series.
MAX_DISTINCT: Final = 0.6
# Maximum fraction of rows that have the time of another row of their series.
MAX_REPEATED: Final = 0.01
# Maximum number of columns that may label series.
MOST_LABELS: Final = 12
# Maximum number of columns that are searched for labels.
MOST_TRIED: Final = 64
MOST_LABELS_PER_ROW: Final = 0.5
UNIT_NAMES: Final = (
    "unit", "units", "einheit", "unité", "unite", "unidad", "uom", "unit_of_measurement", "currency", "ccy", "währung",
    "devise", "divisa", "moneda", "valuta", "waluta",
)  # fmt: skip
# For series whose rows alternate: the minimum number of rows of each series, the minimum fraction of rows that follow a
# row of another series, the tolerance of steps relative to the usual step, and the fraction of such steps within a
# series and among all rows.
LEAST_ROWS: Final = 8
ALTERNATING: Final = 0.8
NEAR: Final = 0.1
LEAST_REGULAR, MOST_REGULAR = 0.9, 0.7


def group_rows(table: Table, by: Sequence[str]) -> tuple[dict[Key, np.ndarray], list[str]]:
    """Return the row indices of each key, and notes on rows without a key. The keys are in the order of their first
    rows."""
    import pyarrow.compute as pc

    if not by:
        return {(): np.arange(len(table))}, []
    codes, cells = np.zeros(len(table), np.int64), []
    is_there = np.ones(len(table), bool)
    for name in by:
        encoded = pc.dictionary_encode(combine_chunks(_key_column(table.columns[name])))
        is_there &= np.asarray(encoded.indices.is_valid().to_numpy(zero_copy_only=False), bool)
        cells.append(
            (encoded.dictionary.to_pylist(), np.asarray(pc.fill_null(encoded.indices, 0).to_numpy(), np.int64))
        )
        _, codes = np.unique(codes * max(1, len(encoded.dictionary)) + cells[-1][1], return_inverse=True)
    rows = np.flatnonzero(is_there)
    _, first, counts = np.unique(codes[rows], return_index=True, return_counts=True)
    if len(first) > MOST_SERIES:
        raise ValueError(f"--by {' '.join(by)} gives {len(first):,} series, but the limit is {MOST_SERIES:,}")
    parts = np.split(rows[np.argsort(codes[rows], kind="stable")], np.cumsum(counts)[:-1])
    found = {tuple(texts[at[parts[k][0]]] for texts, at in cells): parts[k] for k in np.argsort(first)}
    if not found:
        raise ValueError(
            f"no row has a value in all key columns ({', '.join(map(repr, by))}); choose other columns with --by"
        )
    lost = len(table) - len(rows)
    return found, [f"{lost} rows without a key are left out"] if lost else []


def _key_column(column: Any) -> Any:
    """Return keys without surrounding spaces. Empty cells become null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_string(column.type):
        return column
    cells = pc.utf8_trim_whitespace(column)
    return pc.if_else(pc.equal(cells, ""), pa.scalar(None, pa.string()), cells)


def find_keys(table: Table, times: np.ndarray | None, rest: Sequence[str]) -> tuple[str, ...]:
    """Return the columns that label the series of a table. The result is empty if there is one series.

    A column labels series if it has a usual name; if times repeat, but not within each label; or if times decrease only
    where the label changes.

    Args:
        table: The table.
        times: Times of the rows. None if there is no time column.
        rest: Names of the columns other than the time.
    """
    rest = [name for name in rest if not is_part(table.columns[name])]
    named = [name for name in rest if name.strip().lower() in KEY_NAMES]
    codes = {name: cell_codes(table.columns[name]) for name in named}
    usual = [name for name in named if 2 <= len(np.unique(codes[name])) <= MOST_LABELS_PER_ROW * len(table)]
    if times is None:
        given = {name: len(np.unique(cell_codes(table.columns[name]))) for name in table.labels if name in rest}
        labels = [name for name, count in given.items() if 1 < count <= MOST_LABELS_PER_ROW * len(table)]
        return tuple(usual or labels[:1])
    if (np.diff(times) > 0).all() or (np.diff(times) < 0).all():
        return tuple(usual) or _interleaved(table, times, rest)
    rows = len(times)
    repeats = len(np.unique(times)) <= MAX_DISTINCT * rows
    has_blocks = bool((np.diff(times) < 0).any())
    if usual and _repeated([codes[name] for name in usual], times) <= MAX_REPEATED * rows:
        return tuple(usual)
    if not (repeats or has_blocks):
        return tuple(usual) or _interleaved(table, times, rest)
    most = int(np.unique(times, return_counts=True)[1].max())
    others = [name for name in rest if name not in codes][:MOST_TRIED]
    codes |= {name: found for name in others if (found := _label_codes(table, name, most)) is not None}
    codes = dict(list(codes.items())[:MOST_LABELS])
    if repeats:
        for name, found in codes.items():
            if not usual and _repeated([found], times) <= MAX_REPEATED * rows:
                return (name,)
        if _repeated(list(codes.values()), times) <= MAX_REPEATED * rows:
            return _fewest(codes, times)
    blocks = [name for name, found in codes.items() if _are_blocks(found, times)]
    return tuple(usual) or tuple(blocks[:1]) or _interleaved(table, times, rest)


def _interleaved(table: Table, times: np.ndarray, rest: Sequence[str]) -> tuple[str, ...]:
    """Return the column that labels series whose rows alternate and have different times. The result is empty if there
    is none.

    Such a column is found if the time steps within each series are regular but those of all rows are not, or if each
    label has one unit and the units differ.
    """
    if len(times) < 2 * LEAST_ROWS:
        return ()
    is_regular = _near_usual(np.diff(np.sort(times))) > MOST_REGULAR * (len(times) - 1)
    if is_regular and not any(name.strip().lower() in UNIT_NAMES for name in rest):
        return ()
    codes: dict[str, np.ndarray] = {}
    for name in rest[:MOST_TRIED]:
        found = _label_codes(table, name, None)
        if found is not None and found.min() >= 0 and _is_frequent(found):
            codes[name] = found
    units = next((found for name, found in codes.items() if name.strip().lower() in UNIT_NAMES), None)
    if units is not None:
        return next(((name,) for name, found in codes.items() if _tells(found, units)), ())
    if is_regular:
        return ()
    share = {name: _share_of_regular_steps(times, found) for name, found in codes.items()}
    return next(((name,) for name in share if share[name] >= LEAST_REGULAR), ())


def _is_frequent(codes: np.ndarray) -> bool:
    """Return whether each label has many rows, and the labels alternate."""
    counts = np.bincount(codes)
    changes = np.count_nonzero(np.diff(codes))
    return bool(counts.min() >= LEAST_ROWS and changes >= ALTERNATING * len(codes) * (1 - counts.max() / len(codes)))


def _tells(codes: np.ndarray, units: np.ndarray) -> bool:
    """Return whether all rows that have the same label have the same unit."""
    return len(np.unique(np.stack([codes, units], axis=1), axis=0)) == len(np.unique(codes))


def _share_of_regular_steps(times: np.ndarray, codes: np.ndarray) -> float:
    """Return the fraction of steps within series that are close to the typical step of their series."""
    order = np.lexsort((times, codes))
    steps, is_inside = np.diff(times[order]), np.diff(codes[order]) == 0
    near, count = 0, 0
    for code in np.unique(codes):
        ours = steps[is_inside & (codes[order][1:] == code)]
        near, count = near + _near_usual(ours), count + len(ours)
    return near / max(1, count)


def _near_usual(steps: np.ndarray) -> int:
    """Return the number of time steps that are close to the median time step."""
    usual = float(np.median(steps))
    return int((np.abs(steps - usual) <= NEAR * usual).sum()) if usual > 0 else 0


def _fewest(codes: dict[str, np.ndarray], times: np.ndarray) -> tuple[str, ...]:
    """Return the label columns that are needed to distinguish rows with the same time."""
    kept = dict(codes)
    for name in reversed(codes):
        others = [found for other, found in kept.items() if other != name]
        if others and _repeated(others, times) <= MAX_REPEATED * len(times):
            del kept[name]
    return tuple(kept)


def _repeated(codes: Sequence[np.ndarray], times: np.ndarray) -> int:
    """Return the number of rows with the same time and labels as another row."""
    if not codes:
        return len(times)
    order = np.lexsort((times, *codes))
    same = np.diff(times[order]) == 0
    for found in codes:
        same &= np.diff(found[order]) == 0
    return int(same.sum())


def _are_blocks(codes: np.ndarray, times: np.ndarray) -> bool:
    """Return whether the rows of each label are consecutive, and times decrease only between labels."""
    changes = np.diff(codes) != 0
    is_once = int(changes.sum()) == len(np.unique(codes)) - 1
    return is_once and len(codes) >= 3 * (changes.sum() + 1) and not ((np.diff(times) < 0) & ~changes).any()


def _label_codes(table: Table, name: str, most: int | None) -> np.ndarray | None:
    """Encode labels as integers. Return None for constants, measurements and columns of distinct cells.

    Args:
        most: Maximum number of rows with the same time. Integers are labels only if there are as many different ones.
            If None, any number is accepted.
    """
    import pyarrow as pa

    column = table.columns[name]
    if pa.types.is_floating(column.type) or pa.types.is_timestamp(column.type):
        return None
    codes = cell_codes(column)
    kinds, counts = np.unique(codes[codes >= 0], return_counts=True)
    if not 1 < len(kinds) <= MOST_LABELS_PER_ROW * len(codes):
        return None
    if pa.types.is_string(column.type) and not _are_whole(column):
        return None if _are_numbers(column) else codes
    return codes if len(kinds) == (most or len(kinds)) and (counts > 1).all() else None


def cell_codes(column: Any) -> np.ndarray:
    """Encode cells as integers from 0. Equal cells have the same code. Missing cells are encoded as -1."""
    import pyarrow.compute as pc

    encoded = pc.dictionary_encode(combine_chunks(_key_column(column)))
    return np.asarray(pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False), np.int64)


def _are_whole(column: Any) -> bool:
    numbers = numeric_sample(column)
    return numbers is not None and bool((numbers == np.rint(numbers)).all())


def _are_numbers(column: Any) -> bool:
    return numeric_sample(column) is not None

"""Check the times of a table after it was read. Errors about implausible times name the options that help."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from rfa.data.clock_choice import holds_dates, numeric_sample
from rfa.data.clock_numbers import DAY

# Minimum number of rows for judging whether times are plausible.
FEWEST_ROWS: Final = 8
# If the time of more than these fractions of the rows is before, or equal to, that of another row, the rows are not one
# series.
MOST_BACK, MOST_REPEATED = 0.05, 0.5
# Numbers that decrease in more than this fraction of the rows are not times.
MOST_FALLING: Final = 0.4
# Plausible range of times, from 1700 to 2100. Longest plausible gap, which is the larger of 20 years and a number of
# typical time steps.
EARLIEST, LATEST = -8_520_336_000.0, 4_102_444_800.0
LONGEST_GAP, MOST_STEPS = 20 * 365.25 * DAY, 1000.0
MOST_LABELS: Final = 0.5
# Approximate number of steps from which the typical step is computed.
SAMPLED: Final = 10_000


def check_clock(
    columns: dict[str, Any], clock: str, times: np.ndarray, by: Sequence[str], *, is_dated: bool, first_row: int
) -> None:
    """Check that times that were detected from their values are plausible. Times in a column that the caller named are
    not checked.

    Args:
        columns: Columns of the table, without keys.
        clock: Name of the time column.
        times: Times of all rows, in the order of the rows.
        by: Names of the key columns.
        is_dated: Whether the times are dates.
        first_row: Number of the first row, for messages.

    Raises:
        ValueError: If times are out of range or out of order. The message names the options that help.
    """
    steps = np.diff(times)
    is_back = bool((steps < 0).any())
    if is_dated:
        _check_range(clock, times, np.sort(times) if is_back else times, first_row)
    if by or len(times) < FEWEST_ROWS or (steps < 0).all() or (steps > 0).all():
        return
    back = float((steps < 0).mean())
    repeated = 1 - len(np.unique(times)) / len(times) if is_back else float((steps == 0).sum()) / len(times)
    others = [name for name in columns if name != clock]
    if not is_dated and back > MOST_FALLING:
        value = next((name for name in others if numeric_sample(columns[name]) is not None), clock)
        raise ValueError(
            f"column {clock!r} has the name of a time column, but its values decrease in {back:.0%} of the rows; "
            f"specify --time {clock!r} if it contains the times, or choose value columns with --column {value!r}"
        )
    labels = [name for name in others if _may_label(columns[name])]
    if labels and back > MOST_BACK and repeated > 0:
        raise ValueError(_ask(f"times decrease in {int((steps < 0).sum())} of {len(times)} rows", labels[0], clock))
    if repeated > MOST_REPEATED or (
        repeated == MOST_REPEATED and _are_pairs(times, [columns[name] for name in others])
    ):
        raise ValueError(
            _ask(f"{repeated:.0%} of the rows repeat the time of another row", labels[0] if labels else "", clock)
        )


def _are_pairs(times: np.ndarray, columns: Sequence[Any]) -> bool:
    """Return whether each time occurs in exactly two rows, and the two rows of at least one time differ."""
    if (np.unique(times, return_counts=True)[1] != 2).any():
        return False
    first, second = np.sort(np.argsort(times, kind="stable").reshape(-1, 2), axis=1).T
    cells = [np.asarray(column.to_pylist(), object) for column in columns]
    return any(bool((column[first] != column[second]).any()) for column in cells)


def _ask(problem: str, label: str, clock: str) -> str:
    by = f"--by {label!r} if it labels several series, or " if label else ""
    return f"{problem}; specify {by}--time {clock!r} if the rows are one series"


def _check_range(clock: str, times: np.ndarray, ordered: np.ndarray, first_row: int) -> None:
    row = int(np.argmax((times < EARLIEST) | (times > LATEST)))
    if not EARLIEST <= times[row] <= LATEST:
        year = 1970 + times[row] / (365.25 * DAY)
        raise ValueError(
            f"row {first_row + row}, column {clock!r}: the time is in the year {year:.0f}; specify --time {clock!r} if "
            "this is correct, or correct the cell"
        )
    steps = np.diff(ordered)
    if len(steps) >= FEWEST_ROWS and (usual := float(np.median(steps[:: 1 + len(steps) // SAMPLED]))) > 0:
        at = int(np.argmax(steps))
        if steps[at] > max(LONGEST_GAP, MOST_STEPS * usual):
            odd = ordered[at] if at + 1 < len(steps) - at else ordered[at + 1]
            row = int(np.flatnonzero(times == odd)[0])
            raise ValueError(
                f"row {first_row + row}, column {clock!r}: the time is {steps[at] / (365.25 * DAY):.0f} years away "
                f"from most others; specify --time {clock!r} if this is correct, or correct the cell"
            )


def _may_label(column: Any) -> bool:
    """Return whether the texts of a column repeat, so that they may label series."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_string(column.type) or numeric_sample(column) is not None or holds_dates(column):
        return False
    distinct = pc.count_distinct(column).as_py()
    return 1 < distinct <= MOST_LABELS * len(column)

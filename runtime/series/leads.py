"""What the head sees of a lead: how far it is, and what the calendar says there."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

DAY, WEEK, YEAR = 86_400.0, 604_800.0, 365.2425 * 86_400.0
# Sine and cosine of each of them, and a one where there is a calendar.
CALENDAR: Final = 7
# The longest lead that training asks for; beyond it a lead looks as far as that.
FARTHEST: Final = 768
WAVES: Final = 8
LEAD_NUMBERS: Final = 3 + WAVES


def lead_table() -> np.ndarray:
    """What the head sees of leads 0 … FARTHEST, `[FARTHEST + 1, LEAD_NUMBERS]` float32: log, share of the farthest,
    share of 64 up to one, and cosines of the log."""
    near = np.arange(FARTHEST + 1)
    along = np.log1p(near) / math.log1p(FARTHEST)
    waves = np.cos(math.pi * along[:, None] * np.arange(1, WAVES + 1))
    distances = np.stack([along, near / FARTHEST, np.minimum(near / 64, 1)], axis=1)
    return np.concatenate([distances, waves], axis=1).astype(np.float32)


def calendar_numbers(times: np.ndarray) -> np.ndarray:
    """Sine and cosine of the day, the week and the year at times `[...]`, seconds of the epoch on the clock of where
    the series is from, and a one: `[..., CALENDAR]` float32. A series without a calendar has zeros in their place."""
    angles = 2 * np.pi * np.stack([times / cycle % 1 for cycle in (DAY, WEEK, YEAR)], axis=-1)
    return np.concatenate([np.sin(angles), np.cos(angles), np.ones((*times.shape, 1))], axis=-1).astype(np.float32)

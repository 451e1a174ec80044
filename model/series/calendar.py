"""What the head sees of the calendar at a lead."""

from __future__ import annotations

import numpy as np

DAY, WEEK, YEAR = 86_400.0, 604_800.0, 365.2425 * 86_400.0


def calendar_numbers(times: np.ndarray) -> np.ndarray:
    """Sine and cosine of the day, the week and the year at times `[...]`, seconds of the epoch on the clock of where
    the series is from, and a one: `[..., 7]` float32. A series without a calendar has zeros in their place."""
    angles = 2 * np.pi * np.stack([times / cycle % 1 for cycle in (DAY, WEEK, YEAR)], axis=-1)
    return np.concatenate([np.sin(angles), np.cos(angles), np.ones((*times.shape, 1))], axis=-1).astype(np.float32)

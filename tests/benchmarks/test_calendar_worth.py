"""What the calendar is worth: it is told of the cells that are asked about, and a head that knows none is as good."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rfa.benchmarks.series import calendar_worth
from rfa.benchmarks.series.calendar_worth import AHEAD, PARTS
from rfa.model.series.network import Asked, SeriesNetwork
from rfa.runtime.series.leads import CALENDAR, DAY, calendar_numbers
from rfa.training.series_batches import Cells
from tests.small_series import SMALL

HOURLY = Cells(np.sin(2 * np.pi * np.arange(400) / 24) + np.arange(400) / 100, 1e9, 3600.0, True)


@pytest.fixture
def model() -> SeriesNetwork:
    torch.manual_seed(0)
    return SeriesNetwork(SMALL).eval()


def losses(model: SeriesNetwork) -> np.ndarray:
    rng = np.random.default_rng(0)
    near_and_far = calendar_worth.synthetic_losses(model, [HOURLY, HOURLY._replace(start=0.0)], rng)
    return np.concatenate([near_and_far.reshape(-1, 2), calendar_worth.interval_scores(model, HOURLY)])


def test_the_calendar_is_that_of_the_cells_that_are_asked_about() -> None:
    ends, leads = torch.tensor([[16, 32]]), torch.tensor([[[1, 24], [8, 48]]])
    asked = Asked(leads, torch.zeros(1, 2, 2, 1), torch.zeros(1, 2, 2, CALENDAR))
    without, with_it = calendar_worth.both(asked, ends, [HOURLY])
    assert not without.calendar.any()
    found = with_it.calendar[0].numpy()
    cells = np.array([[16, 39], [39, 79]])
    np.testing.assert_array_equal(found, calendar_numbers(HOURLY.start + HOURLY.step * cells))
    assert found[0, 0, 0] == pytest.approx(np.sin(2 * np.pi * (1e9 + 16 * 3600) / DAY), abs=1e-6)


def test_a_head_without_a_calendar_loses_as_much_and_another_does_not(model: SeriesNetwork) -> None:
    told = losses(model)
    assert told.shape == (2 * len(PARTS) + len(AHEAD), 2) and (told > 0).all()
    assert (told[:, 0] != told[:, 1]).all()
    with torch.no_grad():
        model.head.asked.weight[:, -CALENDAR:] = 0
    untold = losses(model)
    np.testing.assert_array_equal(untold[:, 0], untold[:, 1])
    np.testing.assert_array_equal(untold[:, 0], told[:, 0])


def test_worth_is_a_ratio() -> None:
    """Half of the loss in one of two series, as much in the other; a third has none."""
    found = calendar_worth.worth(np.array([[2.0, 1.0], [3.0, 3.0], [0.0, 0.0]]))
    assert found.series == 2 and found.better == 0.5
    assert found.ratio == pytest.approx(0.5**0.5)
    assert found.error == pytest.approx(np.log(2) / 2)

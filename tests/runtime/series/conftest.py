"""Fixtures of the tests of the series network."""

import pytest

from rfa.runtime.series.filter import SeriesRuntime
from tests.runtime.series.series_streams import decoder, network


@pytest.fixture(scope="module")
def network_runtime():
    return SeriesRuntime("series", "0" * 64, decoder(network()))


@pytest.fixture(scope="module", params=["network", "mixture"])
def runtime(network_runtime, request):
    return network_runtime if request.param == "network" else network_runtime.mixed()

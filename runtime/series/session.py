"""The compiled series network as a session for golden outputs. It processes one stream token by token, and predicts
some horizons after each token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from rfa.runtime.series.decoder_numba import SeriesDecoder

NETWORK, QUANTILES = "network", "quantiles"


class _Output(NamedTuple):
    name: str


class SeriesSession:
    """A session of the series network. See `rfa.runtime.bundle.golden.Session`."""

    def __init__(self, decoder: SeriesDecoder) -> None:
        self._decoder = decoder

    def get_outputs(self) -> list[_Output]:
        """Return the names of the outputs of `run`."""
        return [_Output(QUANTILES)]

    def run(self, output_names: list[str] | None, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Return the quantiles of (y - c) / s, `[N, K, Q]`. c and s are the centre and the scale of the token.

        Args:
            output_names: Not used, because there is only one output.
            inputs: `tokens` `[N, FEATURES]`; `lags` `[N]`, the number of cells since the last complete patch; and
                `asked` `[N, K, QUERY_FEATURES]`. A token whose lag is PATCH completes a patch.
        """
        decoder, tokens, lags, asked = self._decoder, inputs["tokens"], inputs["lags"], inputs["asked"]
        means, precisions = decoder.initial_means[None].copy(), decoder.initial_precisions[None].copy()
        patch = int(lags.max())
        begun, outputs = 0, []
        for token, lag, leads in zip(tokens, lags, asked, strict=True):
            slots = means.copy(), precisions.copy()
            states = decoder.forward(token[None], np.array([begun + lag]), lag[None], *slots)
            outputs.append(decoder.quantiles(states, np.zeros(len(leads), np.int64), np.ascontiguousarray(leads)))
            if lag == patch:
                begun += int(lag)
                means, precisions = slots
        return [np.stack(outputs)]

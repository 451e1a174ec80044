"""Export a run of the series network as a bundle of weights and golden outputs, without graphs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from rfa.export.golden_recording import GoldenRecorder
from rfa.export.writing import write_bundle
from rfa.model.checkpoint import CONFIG_FILE, load_run_of
from rfa.model.series.network import SeriesNetwork
from rfa.runtime.bundle.bundle import Bundle
from rfa.runtime.bundle.families.series import NETWORK, SeriesBundleConfig, is_matrix
from rfa.runtime.series.averages_numba import SeriesTokens, describe
from rfa.runtime.series.config import PATCH, PATHS
from rfa.runtime.series.decoder_numba import QUERY_FEATURES, SeriesDecoder
from rfa.runtime.series.leads import lead_table
from rfa.runtime.series.session import SeriesSession

RECORD_FILE = "train.json"
# Number of cells (grid steps) up to each token of the golden stream, and the horizons of its forecasts in cells.
GOLDEN_ENDS = np.array([16, 32, 48, 53, 64, 80, 96, 97])
GOLDEN_LEADS = np.array([1, 2, 24, 64, 500])
# Largest number in float16.
LARGEST_WEIGHT = float(np.finfo(np.float16).max)


def export_series(run: str | Path, out: str | Path, *, name: str | None = None) -> Bundle:
    """Export the run directory of a series network (`rfa train series`) as a bundle, and return the bundle.

    The matrices are rounded to float16. The golden outputs are those of the rounded network. The validation figures are
    copied from the run.

    Args:
        run, out: Run directory, and directory of the bundle.
        name: Name of the bundle. By default, the name of the directory `out`.

    Raises:
        ValueError: If the run is not a run of the series network, or a matrix exceeds the range of float16.
    """
    source, target = Path(run), Path(out)
    model: SeriesNetwork = load_run_of(source, SeriesNetwork, "a series network", "series")
    record = json.loads((source / RECORD_FILE).read_text())
    weights = round_matrices({key: tensor.contiguous().numpy() for key, tensor in model.state_dict().items()})
    sessions = {NETWORK: SeriesSession(SeriesDecoder.of(weights))}
    config = json.loads((source / CONFIG_FILE).read_text())["config"]
    family = SeriesBundleConfig.model_validate(config)
    summary = {"series": record["series"], "validation": record["validation"]}
    return write_bundle(
        target,
        name=name or target.name,
        kind="series",
        family="series",
        config=config,
        weights=weights,
        graphs={},
        calibration={"summary": summary},
        golden=golden_outputs(sessions, weights),
        metrics={},
        provenance={part: record[part] for part in ("data", "commit", "versions", "device")},
        state=family.state(),
    )


def round_matrices(weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the weights of a network with the matrices in float16, which all runtimes represent exactly. Other weights
    are unchanged.

    Raises:
        ValueError: If a matrix contains a number beyond the range of float16.
    """
    rounded = dict(weights)
    for name, array in weights.items():
        if is_matrix(name, array.shape):
            if np.abs(array).max() > LARGEST_WEIGHT:
                raise ValueError(f"{name} contains a number above {LARGEST_WEIGHT:g}, the largest in float16")
            rounded[name] = array.astype(np.float16)
    return rounded


def golden_outputs(sessions: dict[str, SeriesSession], weights: dict[str, np.ndarray]) -> dict[str, object]:
    """Record and return golden outputs for a seasonal series with noise, a gap and an outlier."""
    rng = np.random.default_rng(0)
    t = np.arange(GOLDEN_ENDS[-1])
    values = 20 + 5 * np.sin(2 * np.pi * t / 24) + rng.standard_normal(len(t))
    values[40:44], values[70] = np.nan, 90.0
    leads = np.tile(GOLDEN_LEADS, (len(GOLDEN_ENDS), 1))
    tokens = SeriesTokens.allocate(leads.shape)
    describe(values, GOLDEN_ENDS, leads, tokens)
    asked = np.zeros((*leads.shape, QUERY_FEATURES), np.float32)
    asked[..., :PATHS] = tokens.paths
    table = lead_table()[leads]
    asked[..., PATHS : PATHS + table.shape[-1]] = table
    recorder = GoldenRecorder(sessions, weights)
    lags = (GOLDEN_ENDS - 1) % PATCH + 1
    recorder.run(NETWORK, {"tokens": tokens.features, "lags": lags, "asked": asked})
    return recorder.document()

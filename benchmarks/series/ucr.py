"""Detections in the UCR Anomaly Archive: is the highest score within NEAR rows of the anomaly?

    python -m rfa.benchmarks.series.ucr --data DATA

DATA holds ucr/*.npz, whose series names state the position of the anomaly. Scores count after the training prefix.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from tqdm import tqdm

from rfa.benchmarks.command import finish, parser
from rfa.benchmarks.filters.alarm_rates import ask
from rfa.benchmarks.load.server import started
from rfa.benchmarks.series.files import read_archives
from rfa.measured import origin
from rfa.runtime.bundle.locate import BUNDLE_ROOT

Array = np.ndarray
MODELS: Final = ("series", "auto")
NEAR: Final = 100


class OneAnomaly(NamedTuple):
    """A series of the archive: values `[N]`, rows without anomaly, and first and last row of the anomaly."""

    name: str
    values: Array
    train: int
    begin: int
    end: int

    def is_found(self, row: int) -> bool:
        """Apply the rule of the archive."""
        return self.begin - NEAR <= row <= self.end + NEAR


def load_archive(folder: Path) -> list[OneAnomaly]:
    """Load the series of every file by name."""
    found = read_archives(folder)
    if not found:
        raise ValueError(f"no series in {folder}: it needs files *.npz")
    return [OneAnomaly(name, values.astype(float), *map(int, name.split("_")[-3:])) for name, values in found.items()]


def largest(anomaly: Array, nis: Array, first: int) -> int:
    """Return the row of the largest score from row `first` on. Unknown scores are the least."""
    scores = np.nan_to_num(np.stack([nis, anomaly])[:, first:], nan=-np.inf)
    return first + int(np.lexsort(scores)[-1])


def pointed_at(url: str, model: str, series: OneAnomaly) -> int | None:
    """Return the row that a model detects, or None for a series without values."""
    if len(series.values) <= series.train:
        return None
    body = {"model": model, "values": {"y": series.values.tolist()}, "fields": ["anomaly", "nis"]}
    columns = ask(url, body)
    return largest(columns["anomaly"], columns["nis"], series.train)


def measure(archive: list[OneAnomaly]) -> dict[str, Any]:
    """Return the detected series and the detected row of each series, by model."""
    longest = max(len(one.values) for one in archive)
    models: dict[str, Any] = {}
    with started([BUNDLE_ROOT / "series"], {"max_observations": longest}) as target:
        for model in MODELS:
            rows = {
                one.name: pointed_at(target.url, model, one)
                for one in tqdm(archive, desc=model, unit="series", disable=None)
            }
            found = [one.name for one in archive if (row := rows[one.name]) is not None and one.is_found(row)]
            models[model] = {"found": len(found), "rows": rows, "names": found}
    return {
        "series": len(archive),
        "with_values": sum(len(one.values) > one.train for one in archive),
        "models": models,
    }


def main() -> None:
    """Run the benchmark, print the results and write the file."""
    given = parser(__doc__, "series-ucr", needs_data=True).parse_args()
    here = origin("python -m rfa.benchmarks.series.ucr --data DATA")
    finish("series-ucr", given.out, {**here, **measure(load_archive(given.data / "ucr"))})


if __name__ == "__main__":
    main()

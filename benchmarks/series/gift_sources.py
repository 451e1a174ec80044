"""Sources of the data sets of GIFT-Eval and of its published results.

    python -m rfa.benchmarks.series.gift_sources --data DATA [--clones CLONES]

Each file is taken at a fixed commit of a public Git repository. Repositories that are not yet in CLONES are cloned
there, without the files that are not needed. DATA then has

    m4/{Hourly,Weekly}-{train,test}.csv.gz
    ett/ETTm{1,2}.csv.gz
    gift/                    the other sets, as in SOURCES
    gift/published/          GIFT-Eval's table of each model in PUBLISHED
"""

from __future__ import annotations

import argparse
import csv
import gzip
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

from rfa.benchmarks.series.gift_data import full_name

GIFT: Final = "SalesforceAIResearch/gift-eval"
# Repositories on github.com, and the commits that have the files.
COMMITS: Final = {
    "Mcompetitions/M4-methods": "6c1067e5a57161249b17289a565178dc7a3fb3ca",
    "ljnvs/HiCR-Mamba": "d472c100956ed4373e9ca3700481ce88f8f1e4dd",
    "vincentarelbundock/Rdatasets": "1dcc2bf5f955cc1224a3e1307256e1fe86b68dae",
    "cran/deseasonalize": "fde22060bb555ec3a8ec8cfa3b5ffd0c85bd5022",
    "cran/expsmooth": "1c8e4c57f557bc5b2ea64eb130647f6d70d7545e",
    "GonBla/Pasta_Time_Series": "4affc6e4d44e8332f0b49c45948e141385bf0735",
    "BizITObs/BizITObservabilityData": "fec39821ee492aa4874e562d03695ce2e64a39a1",
    GIFT: "4fd98a9f803a0266f062737281555ddcd220bf81",
}


class Source(NamedTuple):
    """A file of a repository, its path in DATA, and the licence of the data."""

    repository: str
    path: str
    target: str
    licence: str


ETT: Final = "CC BY-ND 4.0 (zhouhaoyi/ETDataset)"
WEATHER: Final = "none stated (Max Planck Institute for Biogeochemistry, Jena)"
OBSERVABILITY: Final = "Community Data License Agreement, Sharing, 1.0"
_AUTOMIXER: Final = (
    "Publication-wise/IAAI 2024/AutoMixer for Improved Multivariate Time-Series Forecasting on Business and IT "
    "Observability Data/Time Series"
)
SOURCES: Final = (
    *(
        Source("Mcompetitions/M4-methods", f"Dataset/{part.title()}/{often}-{part}.csv", f"m4/{often}-{part}.csv.gz",
               "none stated")
        for often in ("Hourly", "Weekly")
        for part in ("train", "test")
    ),
    Source("ljnvs/HiCR-Mamba", "datasets/ETT-small/ETTm1.csv.gz", "ett/ETTm1.csv.gz", ETT),
    Source("ljnvs/HiCR-Mamba", "datasets/ETT-small/ETTm2.csv.gz", "ett/ETTm2.csv.gz", ETT),
    Source("ljnvs/HiCR-Mamba", "datasets/weather/weather.csv.gz", "gift/weather.csv.gz", WEATHER),
    Source("vincentarelbundock/Rdatasets", "csv/mosaicData/Births.csv", "gift/Births.csv", "GPL 2 or later"),
    Source("cran/deseasonalize", "data/SaugeenDay.rda", "gift/SaugeenDay.rda", "GPL 2 or later"),
    Source("cran/expsmooth", "data/hospital.rda", "gift/hospital.rda", "GPL 2 or later"),
    Source("cran/expsmooth", "data/carparts.rda", "gift/carparts.rda", "GPL 2 or later"),
    Source("GonBla/Pasta_Time_Series", "hierarchical_sales_data.csv", "gift/hierarchical_sales_data.csv",
           "CC BY 4.0 (Mancuso et al. 2021)"),
    Source("BizITObs/BizITObservabilityData", f"{_AUTOMIXER}/Application.csv", "gift/Application.csv", OBSERVABILITY),
    Source("BizITObs/BizITObservabilityData", f"{_AUTOMIXER}/L2C.csv", "gift/L2C.csv", OBSERVABILITY),
)  # fmt: skip
# Published models by the name of their folder, with the size of the networks.
PUBLISHED: Final = {
    "chronos-2": "Chronos-2, 120 M",
    "chronos-2-synth": "Chronos-2, synthetic alone, 120 M",
    "TiRex": "TiRex, 35 M",
    "FlowState-r1.1": "FlowState r1.1, 2.6 to 9 M",
    "Moirai2": "Moirai 2, 11 M",
    "Toto-2.0-4m": "Toto-2.0, 4 M",
    "TempoPFN": "TempoPFN, synthetic alone, 38 M",
    "chronos_bolt_small": "Chronos-Bolt small, 48 M",
    "FLAIR": "FLAIR, no training",
    "auto_arima": "AutoARIMA",
    "auto_ets": "AutoETS",
    "auto_theta": "AutoTheta",
}


def bring(data: Path, clones: Path, sources: Iterable[Source]) -> None:
    """Write the files that DATA lacks, compressed where their path says so."""
    for source in sources:
        target = data / source.target
        if target.is_file():
            continue
        content = committed(source.repository, source.path, clones)
        if target.suffix == ".gz" and not source.path.endswith(".gz"):
            content = gzip.compress(content, mtime=0)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


def committed(repository: str, path: str, clones: Path) -> bytes:
    """Return the content of a file of a GitHub repository at its commit in `COMMITS`.

    The repository is cloned if it is not in the directory `clones`.
    """
    clone = clones / repository.replace("/", "+")
    if not clone.exists():
        address = f"https://github.com/{repository}"
        subprocess.run(["git", "clone", "--filter=blob:none", "--no-checkout", address, str(clone)], check=True)
    command = ["git", "-C", str(clone), "show", f"{COMMITS[repository]}:{path}"]
    return subprocess.run(command, capture_output=True, check=True).stdout


def tables() -> list[Source]:
    """Return GIFT-Eval's tables of the published models."""
    return [
        Source(GIFT, f"results/{one}/all_results.csv", f"gift/published/{one}.csv", "Apache 2.0") for one in PUBLISHED
    ]


def published(data: Path, tasks: Iterable[str]) -> dict[str, Any]:
    """Return the published MASE and WQL of these tasks by model, and their source, or nothing without tables."""
    names = {full_name(task): task for task in tasks}
    models: dict[str, dict[str, list[float]]] = {}
    for folder, model in PUBLISHED.items():
        path = data / "gift" / "published" / f"{folder}.csv"
        if path.is_file():
            with path.open(newline="", encoding="utf-8") as file:
                models[model] = {
                    names[row["dataset"]]: [
                        round(float(row["eval_metrics/MASE[0.5]"]), 4),
                        round(float(row["eval_metrics/mean_weighted_sum_quantile_loss"]), 5),
                    ]
                    for row in csv.DictReader(file)
                    if row["dataset"] in names
                }
    return {"repository": GIFT, "commit": COMMITS[GIFT], "models": models} if models else {}


def main() -> None:
    """Download all files."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", type=Path, required=True, help="folder to write the files to")
    options.add_argument("--clones", type=Path, help="folder of the clones (default: DATA/clones)")
    given = options.parse_args()
    bring(given.data, given.clones or given.data / "clones", [*SOURCES, *tables()])


if __name__ == "__main__":
    main()

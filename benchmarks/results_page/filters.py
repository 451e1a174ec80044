"""Tables and targets of filters on the results page that need a computation. All others are declared in tables.toml."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rfa.benchmarks.results_page.parts import Document, ShownBar, Table, percent

CONFORMAL_POINTS = 2.0
# Requirements set before the measurement: alarms on clean prefixes of the UCR archive, as a multiple of the stated
# rate, by rate; coverage there, in points; and the standard profile of NAB with one setting, by model.
ALARM_TIMES = {"0.01": (1 / 1.5, 1.5), "0.001": (1 / 1.5, 1.5), "0.0001": (0.0, 2.0)}
COVERAGE_POINTS = 1.0
NAB = {"auto": 55.0, "series": 58.0}


def and_others(document: Document) -> list[Document]:
    """Return the origins of the file and of the results added to it for other bundles."""
    return [document, *document.get("others", {}).values()]


def alarm_tables(document: Document) -> list[Table]:
    others = document.get("others", {})
    rows = [
        (f"{name}, `{model}`" if others else name, row)
        for name in document["rows"]
        for model, one in {document["model"]: document, **others}.items()
        if (row := one["rows"].get(name))
    ]
    first = rows[0][1]
    return [
        Table(
            ("series", "observations", *(f"at {rate}" for rate in first["over_nominal"])),
            [
                (name, f"{row['observations']:,}", *(f"{value:.2f}" for value in row["over_nominal"].values()))
                for name, row in rows
            ],
            f"The first {document['burn_in']} observations of each series are not counted.",
        ),
        Table(
            ("series", *(f"{100 * float(level):g} %" for level in first["coverage"])),
            [(name, *(f"{100 * value:.1f}" for value in row["coverage"].values())) for name, row in rows],
            "The next table shows the percentage of observations inside their one-step forecast interval, by level.",
        ),
    ]


def alarm_bars(document: Document) -> Iterator[ShownBar]:
    for model, one in {document["model"]: document, **document.get("others", {})}.items():
        if (row := one["rows"].get("ucr")) is None:
            continue
        for rate, (least, most) in ALARM_TIMES.items():
            times = row["over_nominal"][rate]
            limit = f"{least:.2f} to {most:.2f}" if least else f"{most:g}"
            yield ShownBar(
                f"{model}: alarms / requested alarms at {rate}", f"{times:.2f}", limit, least <= times <= most
            )
        gap = max(abs(100 * (share - float(level))) for level, share in row["coverage"].items())
        name = f"{model}: intervals of 50 to 99.9 %, largest distance from their level, points"
        yield ShownBar(name, f"{gap:.2f}", f"{COVERAGE_POINTS:g}", gap <= COVERAGE_POINTS)


def nab_tables(document: Document) -> list[Table]:
    rows = []
    own, *baselines = document["detectors"].items()
    others = {name: one["score"] for name, one in document.get("others", {}).items()}
    for name, parts in (own, *others.items(), *baselines):
        for key, title in (("score", f"a rate of {document['rate']}"), ("best", "best threshold")):
            scores = [profile[key] for profile in parts["whole"].values()]
            if None not in scores:
                rows.append((f"{name}, {title}", *(f"{score:.1f}" for score in scores)))
    profiles = own[1]["whole"]
    note = f"The NAB score is computed on {document['files']} of 58 files, with `quiet` = {document['quiet']} rows."
    return [Table(("detector", *profiles), rows, note)]


def nab_bars(document: Document) -> Iterator[ShownBar]:
    others = {name: one["score"] for name, one in document.get("others", {}).items()}
    own = document["bundle"]
    for model, parts in {own: document["detectors"][own], **others}.items():
        score, bar = parts["whole"]["standard"]["score"], NAB["series" if model == "series" else "auto"]
        yield ShownBar(f"{model}: NAB, standard profile, one setting", f"{score:.1f}", f"{bar:g}", score >= bar)


def forecast_tables(document: Document) -> list[Table]:
    tables = []
    for lead in document["summary"]:
        methods = list(document["columns"][0]["leads"][lead])
        tables.append(
            Table(
                ("column", *methods, "coverage of 90 %", "coverage, fixed widths"),
                [
                    (
                        column["name"],
                        *(f"{column['leads'][lead][name]['crps']:.4f}" for name in methods),
                        *(percent(column["leads"][lead][name]["coverage"]) for name in ("filter", "filter, fixed")),
                    )
                    for column in document["columns"]
                ],
                f"The CRPS {lead} h ahead is computed on the last third, which has {document['rows']['test']:,} hours.",
            )
        )
    return tables


def forecast_bars(document: Document) -> Iterator[ShownBar]:
    for lead, summary in document["summary"].items():
        for rival, count in summary["better_than"].items():
            columns = summary["columns"]
            yield ShownBar(f"CRPS {lead} h ahead below {rival}", f"{count} columns", f"{columns}", count == columns)
        gap = max(abs(100 * column["leads"][lead]["filter"]["coverage"] - 90) for column in document["columns"])
        name = f"90 % intervals {lead} h ahead, largest distance from 90 %, points"
        yield ShownBar(name, f"{gap:.2f}", f"{CONFORMAL_POINTS:g}", gap <= CONFORMAL_POINTS)


def afa_tables(document: Document) -> list[Table]:
    rows = document["rows"]
    losses = list(rows[0]["loss"])
    return [
        Table(
            ("noise (σ², η²)", "AFA, by seed", *losses),
            [(_noise(row), _by_seed(row, "loss"), *(f"{row['loss'][name]:.3f}" for name in losses)) for row in rows],
            "The table shows the one-step loss.",
        ),
        Table(
            ("noise (σ², η²)", "state RMSE, by seed", "Kalman filter", "raw", "eigenvalues found", "in 90 %"),
            [
                (
                    _noise(row),
                    _by_seed(row, "state_rmse"),
                    *(f"{row['state_rmse'][name]:.3f}" for name in ("kalman", "raw")),
                    _eigenvalues(run["eigenvalues"] for run in row["afa"]),
                    " ".join(percent(run["coverage_90"]) for run in row["afa"]),
                )
                for row in rows
            ],
            f"The true eigenvalues are {_eigenvalues([document['true_eigenvalues']])}.",
        ),
    ]


def _noise(row: Document) -> str:
    return f"({row['sigma2']:g}, {row['eta2']:g})"


def _by_seed(row: Document, key: str) -> str:
    return " ".join(f"{run[key]:.3f}" for run in row["afa"])


def _eigenvalues(runs: Iterable[Iterable[Sequence[float]]]) -> str:
    """Return the eigenvalue of positive frequency of each run; the other one is its conjugate."""
    pairs = [next(pair for pair in run if pair[1] > 0) for run in runs]
    return ", ".join(f"{real:.2f} ± {imaginary:.2f}i".replace("-", "−") for real, imaginary in pairs)


def auto_bars(document: Document) -> Iterator[ShownBar]:
    for column, lead in enumerate(document["leads"]):
        leads = [one[column] for one in document["summary"].values()]
        figures = sum(one["figures"] for one in leads)
        held = sum(one["inside"] + one["warned"] for one in leads)
        yield ShownBar(
            f"auto: coverage {lead} ahead within the target range, or a warning",
            f"{held} of {figures}",
            f"{figures}",
            held == figures,
        )

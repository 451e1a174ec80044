"""What the filters reach: accuracy, calibration, forecasts, anomalies, speed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rfa.benchmarks.results_page.parts import Document, Shown, ShownBar, Table, percent

# Settings of the noise of `rfa bench filter`, and what it compares.
RMSE = {
    "raw": "raw",
    "kalman": "kalman",
    "oracle": "oracle",
    "transformer": "transformer",
    "linear recurrent": "`linear`",
    "linear attention": "`linear`, batch",
    "oscillator recurrent": "`oscillator`",
}
CONFORMAL_POINTS = 2.0
# What was asked beforehand of alarms on clean prefixes of the UCR archive, times what was stated, by the rate; of
# coverage there, in points; and of NAB's standard profile with one setting, by model.
ALARM_TIMES = {"0.01": (1 / 1.5, 1.5), "0.001": (1 / 1.5, 1.5), "0.0001": (0.0, 2.0)}
COVERAGE_POINTS = 1.0
NAB = {"auto": 55.0, "series": 58.0}


def oscillator_tables(document: Document) -> list[Table]:
    rows = document["rows"]
    filters = list(rows[0]["coverage"])
    gaps = [(name, *(f"{100 * max(_gaps(rows, name, part)):.1f}" for part in ("state", "1", "20"))) for name in filters]
    return [
        Table(
            ("noise (σ², η²), data", *RMSE.values()),
            [
                (f"({row['sigma2']:g}, {row['eta2']:g}), {row['data']}", *(f"{row['rmse'][name]:.3f}" for name in RMSE))
                for row in rows
            ],
            f"RMSE of the state over {document['streams']} held-out series of {document['length']} measurements:",
        ),
        Table(
            ("filter", "state", "forecast of 1 step", "of 20 steps"),
            gaps,
            "Largest distance of the coverage of 50, 80, 90 and 95 % intervals from their level, in points:",
        ),
    ]


def _gaps(rows: Sequence[Document], name: str, part: str) -> Iterator[float]:
    for row in rows:
        covered = row["coverage"][name]
        shares = covered["state"] if part == "state" else covered["forecast"][part]
        yield from (abs(share - float(level)) for level, share in shares.items())


def accuracy_tables(document: Document) -> list[Table]:
    tracking, jumps = document["tracking"], document["level_shift"]
    names = list(tracking["clean"])
    return [
        Table(
            ("scenario", *names),
            [
                (case, *(f"{rows[name]['rmse']:.3f}" if name in rows else "–" for name in names))
                for case, rows in tracking.items()
            ],
            f"RMSE of the position over {document['trials']} streams of {document['steps']:,} steps:",
        ),
        Table(
            ("jump", *next(iter(jumps.values()))),
            [(size, *(f"{row['median']:.0f}" for row in rows.values())) for size, rows in jumps.items()],
            "Steps until the estimate has followed a jump of the level, median:",
        ),
    ]


def accuracy_bars(document: Document) -> list[ShownBar]:
    return [
        ShownBar(bar["name"], f"{bar['value']:.4g}{_error(bar['error'])}", f"{bar['bar']:g}", bar["is_met"])
        for bar in document["bars"]
    ]


def _error(error: float | None) -> str:
    return "" if not error else f" ± {error:.1g}"


def precision_tables(document: Document) -> list[Table]:
    return [
        Table(
            ("bundle, mode, data", "setting", "precision × error²"),
            [
                (f"{row['bundle']}, {row['mode']}, {row['data']}", setting, _with_error(one))
                for row in document["rows"]
                for setting, one in row["settings"].items()
            ],
            "Mean over streams and steps, and its standard error:",
        )
    ]


def precision_bars(document: Document) -> list[ShownBar]:
    return [
        ShownBar(bar["name"], f"{bar['value']:.3f} ± {bar['error']:.3f}", f"1 ± {bar['bar']:g}", bar["is_met"])
        for bar in document["bars"]
    ]


def _with_error(found: Document) -> str:
    return f"{found['mean']:.3f} ± {found['error']:.3f}"


def and_others(document: Document) -> list[Document]:
    """The file, and what was added to it of other bundles."""
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
            f"Alarms over nominal, pooled; the first {document['burn_in']} observations of a series not counted:",
        ),
        Table(
            ("series", *(f"{100 * float(level):g} %" for level in first["coverage"])),
            [(name, *(f"{100 * value:.1f}" for value in row["coverage"].values())) for name, row in rows],
            "Percent of the observations inside their one-step forecast interval, by its level:",
        ),
    ]


def alarm_bars(document: Document) -> Iterator[ShownBar]:
    for model, one in {document["model"]: document, **document.get("others", {})}.items():
        if (row := one["rows"].get("ucr")) is None:
            continue
        for rate, (least, most) in ALARM_TIMES.items():
            times = row["over_nominal"][rate]
            limit = f"{least:.2f} to {most:.2f}" if least else f"{most:g}"
            yield ShownBar(f"{model}: alarms over nominal at {rate}", f"{times:.2f}", limit, least <= times <= most)
        gap = max(abs(100 * (share - float(level))) for level, share in row["coverage"].items())
        name = f"{model}: intervals of 50 to 99.9 %, largest distance from their level, points"
        yield ShownBar(name, f"{gap:.2f}", f"{COVERAGE_POINTS:g}", gap <= COVERAGE_POINTS)


def nab_tables(document: Document) -> list[Table]:
    rows = []
    own, *baselines = document["detectors"].items()
    others = {name: one["score"] for name, one in document.get("others", {}).items()}
    for name, parts in (own, *others.items(), *baselines):
        for key, title in (("score", f"a rate of {document['rate']}"), ("best", "at its best")):
            scores = [profile[key] for profile in parts["whole"].values()]
            if None not in scores:
                rows.append((f"{name}, {title}", *(f"{score:.1f}" for score in scores)))
    profiles = own[1]["whole"]
    note = f"NAB's score over {document['files']} of its 58 files, {document['quiet']} rows quiet after an alarm:"
    return [Table(("detector", *profiles), rows, note)]


def nab_bars(document: Document) -> Iterator[ShownBar]:
    others = {name: one["score"] for name, one in document.get("others", {}).items()}
    own = document["bundle"]
    for model, parts in {own: document["detectors"][own], **others}.items():
        score, bar = parts["whole"]["standard"]["score"], NAB["series" if model == "series" else "auto"]
        yield ShownBar(f"{model}: NAB, standard profile, one setting", f"{score:.1f}", f"{bar:g}", score >= bar)


def speed_tables(document: Document) -> list[Table]:
    rows = [row for row in document["rows"] if "not_run" not in row]
    return [
        Table(
            ("job, filter", "µs a step", "steps a second"),
            [
                (f"{row['job']}: {row['name']}", f"{row['us_per_step']:g}", f"{row['steps_per_second']:,}")
                for row in rows
            ],
            f"Online is one stream, observation by observation; batch is many at once. {document['cores_used']} core, "
            f"{document['clock']} of {document['runs']} runs:",
        )
    ]


def forecast_tables(document: Document) -> list[Table]:
    tables = []
    for lead in document["summary"]:
        methods = list(document["columns"][0]["leads"][lead])
        tables.append(
            Table(
                ("column", *methods, "90 % cover", "cover, fixed widths"),
                [
                    (
                        column["name"],
                        *(f"{column['leads'][lead][name]['crps']:.4f}" for name in methods),
                        *(percent(column["leads"][lead][name]["coverage"]) for name in ("filter", "filter, fixed")),
                    )
                    for column in document["columns"]
                ],
                f"CRPS {lead} h ahead, on the {document['rows']['test']:,} hours of the test third:",
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
            "One-step loss:",
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
            f"The true eigenvalues are {_eigenvalues([document['true_eigenvalues']])}:",
        ),
    ]


def _noise(row: Document) -> str:
    return f"({row['sigma2']:g}, {row['eta2']:g})"


def _by_seed(row: Document, key: str) -> str:
    return " ".join(f"{run[key]:.3f}" for run in row["afa"])


def _eigenvalues(runs: Iterable[Iterable[Sequence[float]]]) -> str:
    """Of each run its eigenvalue of positive frequency; the other is its conjugate."""
    pairs = [next(pair for pair in run if pair[1] > 0) for run in runs]
    return ", ".join(f"{real:.2f} ± {imaginary:.2f}i".replace("-", "−") for real, imaginary in pairs)


def auto_tables(document: Document) -> list[Table]:
    rows = [
        (f"{name}, {lead}", one)
        for name, leads in document["summary"].items()
        for lead, one in zip(document["leads"], leads, strict=True)
    ]
    return [
        Table(
            ("set, lags ahead", "series", "coverage", "inside", "outside, warned", "error", "interval score"),
            [
                (
                    title,
                    str(one["figures"]),
                    f"{one['coverage']:.3f}",
                    str(one["inside"]),
                    f"{one['warned']} of {one['figures'] - one['inside']}",
                    f"{one['error_over_last']:.3f}",
                    f"{one['interval_score']:.2f}",
                )
                for title, one in rows
            ],
            "Series with 500 forecasts or more, their mean coverage, and how many are inside the bar; mean absolute "
            "error over that of the last value, and interval score, from the 50th row on, over the last value's error "
            "one lag ahead, geometric means:",
        )
    ]


def auto_bars(document: Document) -> Iterator[ShownBar]:
    for column, lead in enumerate(document["leads"]):
        leads = [one[column] for one in document["summary"].values()]
        figures = sum(one["figures"] for one in leads)
        held = sum(one["inside"] + one["warned"] for one in leads)
        yield ShownBar(
            f"auto: coverage {lead} ahead inside, or warned of", f"{held} of {figures}", f"{figures}", held == figures
        )


SHOWN = {
    "auto-coverage": Shown(auto_tables, auto_bars),
    "filter-accuracy": Shown(accuracy_tables, accuracy_bars),
    "filter": Shown(oscillator_tables),
    "filter-precision": Shown(precision_tables, precision_bars),
    "alarm-rates": Shown(alarm_tables, alarm_bars, and_others),
    "filter-nab": Shown(nab_tables, nab_bars, and_others),
    "forecast-etth1": Shown(forecast_tables, forecast_bars),
    "filter-speed": Shown(speed_tables),
    "afa": Shown(afa_tables),
}

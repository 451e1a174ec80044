"""`rfa events`: convert log lines to sequences of events."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from rfa.cli.console import print_json
from rfa.cli.options import JsonFlag

Session = Annotated[
    str | None,
    typer.Option(
        help=(
            "Regular expression that matches the name of the session in a line, such as 'blk_-?[0-9]+'. By default, "
            "all lines belong to one session."
        )
    ),
]
TemplateFile = Annotated[
    Path | None,
    typer.Option(
        "--templates",
        help="JSON file with the templates of the events. The command creates it, or adds new templates to it.",
    ),
]
CountStep = Annotated[
    str | None,
    typer.Option(
        help="Count the events of each kind per time step, such as 1min. `rfa watch` can read the result.",
        metavar="STEP",
    ),
]


def log_events(
    file: Annotated[str, typer.Argument(help="Log file, or - for standard input.")],
    *,
    session: Session = None,
    templates: TemplateFile = None,
    counts: CountStep = None,
    as_json: JsonFlag = False,
) -> None:
    """Print the events of a log as numbers, one session per line, for `rfa train lm` and `rfa score`. With --counts,
    print the counts of the events.

    Lines that differ only in numbers and names are the same event. Lines in which --session finds no match are skipped.
    """
    from rfa.data.log_lines import count_events, events_of
    from rfa.data.log_templates import Templates

    has_templates = templates is not None and templates.is_file()
    known = json.loads(templates.read_text()) if templates is not None and has_templates else []
    if not isinstance(known, list) or not all(isinstance(text, str) for text in known):
        raise ValueError(f"--templates {templates} was not written by this command; specify another file")
    if counts is not None and (session is not None or as_json):
        raise ValueError(
            "--counts prints JSON lines for all sessions and does not support --session or --json; remove them"
        )
    miner, sessions = Templates(known), dict[str, list[int]]()
    pattern = None if session is None else re.compile(session)
    with sys.stdin if file == "-" else Path(file).open(encoding="utf-8", errors="replace") as stream:
        if counts is not None:
            for row in count_events(iter(stream), miner, _seconds(counts)):
                typer.echo(json.dumps(row))
        for _, message in events_of(iter(stream)):
            name = "" if pattern is None else pattern.search(message)
            if name is not None and (number := miner.number(message)):
                sessions.setdefault(name if isinstance(name, str) else name[0], []).append(number)
    if templates is not None:
        templates.write_text(json.dumps(miner.texts, indent=1) + "\n")
    if as_json:
        print_json({"templates": miner.texts, "sessions": sessions})
        return
    for events in sessions.values():
        typer.echo(" ".join(map(str, events)))


def _seconds(step: str) -> float:
    from rfa.data.durations import SECONDS, duration

    found = duration(step)
    if found is None:
        raise ValueError(f"--counts must be a duration such as 10s, 1min or 1h, got {step!r}")
    return found[0] * SECONDS[found[1] or "s"]

"""`rfa score`: find improbable events in sequences."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from rfa.cli.console import print_json
from rfa.cli.options import JsonFlag

Rate = Annotated[
    float, typer.Option(min=1e-9, max=0.5, help="Alarm rate: expected fraction of ordinary events that raise an alarm.")
]


def score_events(
    file: Annotated[str, typer.Argument(help="File with one sequence of integers per line, or - for standard input.")],
    bundle: Annotated[str, typer.Option(help="Bundle directory, or name of a default bundle.")] = "events",
    rate: Rate = 0.001,
    passes: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of reweighting passes per token. The default is the maximum that the model supports.",
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Print the events whose tail probability is at most --rate. The end of a sequence counts as an event.

    Use `rfa train lm` to train a model on your own sequences.
    """
    from rfa.library.events import EventModel
    from rfa.runtime.text.sequences import read_sequences

    name = "standard input" if file == "-" else file
    model, found = EventModel(bundle, passes=passes), []
    events = lines = 0
    with sys.stdin if file == "-" else Path(file).open(encoding="utf-8") as stream:
        for line, sequence in read_sequences(stream, name):
            scores = model.score(sequence)
            lines, events = lines + 1, events + len(scores.tail)
            for place in (scores.tail <= rate).nonzero()[0].tolist():
                event = sequence[place] if place < len(sequence) else None
                alarm = {"line": line, "place": place + 1, "event": event, "tail": float(scores.tail[place])}
                found.append(alarm)
                if not as_json:
                    typer.echo(_shown(alarm))
    flagged = len({alarm["line"] for alarm in found})
    summary = {
        "sequences": lines, "events": events, "alarms": len(found), "expected": rate * events, "flagged": flagged,
    }  # fmt: skip
    if as_json:
        print_json({**summary, "rate": rate, "found": found})
    else:
        typer.echo(
            f"{len(found)} alarms in {flagged} of {lines} sequences; {rate * events:.3g} alarms would be expected if "
            f"all {events} events were ordinary",
            err=True,
        )


def _shown(alarm: dict[str, Any]) -> str:
    event = "the end" if alarm["event"] is None else f"event {alarm['event']}"
    return f"line {alarm['line']}, position {alarm['place']}: {event}, probability {alarm['tail']:.2g}"

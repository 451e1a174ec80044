"""Anomalous HDFS sessions by the events of their log: DeepLog's protocol with the bundle `events`.

A session is flagged if one of its events, or its end, is an alarm at a rate per event. The bundle is trained on some of
the normal sessions; the last `HELD_OUT` normal ones and all abnormal ones are tested. DeepLog's test has 553,366 normal
sessions and 16,838 abnormal ones: `f1_deeplog` has the rates found here in those numbers. Alarms on the normal sessions
are compared with the rate.

Source: Du, Li, Zheng and Srikumar, DeepLog, CCS 2017.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from rfa.library.events import EventModel
from rfa.measured import origin, write_result
from rfa.runtime.text.sequences import read_sequences

RATES: Final = (0.03, 0.01, 0.003, 0.001, 0.0003, 0.0001, 0.00003, 0.00001)
HELD_OUT: Final = 1_000
# Of the other normal sessions, every fourth calibrates.
CALIBRATES: Final = 4
DEEPLOG_TEST: Final = (553_366, 16_838)


def sessions_of(file: Path) -> list[list[int]]:
    """Return the sessions of a file."""
    with file.open(encoding="ascii") as stream:
        return [events for _, events in read_sequences(stream, str(file))]


def write_corpus(data: Path, folder: Path) -> None:
    """Write the corpus that the bundle is trained on: train.txt and valid.txt."""
    normal = sessions_of(data / "normal.txt")[:-HELD_OUT]
    parts: dict[str, list[str]] = {"train": [], "valid": []}
    for index, events in enumerate(normal):
        name = "valid" if index % CALIBRATES == CALIBRATES - 1 else "train"
        parts[name].append(" ".join(map(str, events)) + "\n")
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in parts.items():
        (folder / f"{name}.txt").write_text("".join(lines))


def run_events(data: Path, bundle: str) -> dict[str, Any]:
    """Test a bundle, and return the document that `write_events` stores."""
    model = EventModel(bundle)
    normal, abnormal = sessions_of(data / "normal.txt")[-HELD_OUT:], sessions_of(data / "abnormal.txt")
    model.score(normal[0])
    begun = time.process_time()
    tails = {"normal": _tails(model, normal), "abnormal": _tails(model, abnormal)}
    seconds = time.process_time() - begun
    events = sum(len(session) for parts in tails.values() for session in parts)
    rows = [_row(rate, tails["normal"], tails["abnormal"]) for rate in RATES]
    return {
        **origin("rfa bench events"),
        "bundle": bundle,
        "sessions": {name: len(parts) for name, parts in tails.items()},
        "normal_events": sum(map(len, tails["normal"])),
        "whole_us_per_event": 1e6 * seconds / events,
        "single_us_per_event": _single(model, normal[:50]),
        "rows": rows,
        "best": max(rows, key=lambda row: row["f1"]),
    }


def write_events(data: Path, bundle: str, out: Path) -> dict[str, Any]:
    """Write the document of `run_events` to a JSON file."""
    document = run_events(data, bundle)
    write_result(out, document)
    return document


def _tails(model: EventModel, sessions: Sequence[Sequence[int]]) -> list[np.ndarray]:
    return [model.score(events).tail for events in sessions]


def _row(rate: float, normal: Sequence[np.ndarray], abnormal: Sequence[np.ndarray]) -> dict[str, float]:
    """Return the sessions that are flagged at a rate, and the number of alarms in normal sessions divided by its
    expectation.
    """
    wrong = sum(bool((tail <= rate).any()) for tail in normal)
    right = sum(bool((tail <= rate).any()) for tail in abnormal)
    alarms, events = sum(int((tail <= rate).sum()) for tail in normal), sum(map(len, normal))
    recall, false_rate = right / len(abnormal), wrong / len(normal)
    usual, rare = DEEPLOG_TEST
    return {
        "rate": rate,
        "alarms": alarms,
        "alarms_over_expected": alarms / (rate * events),
        "normal_flagged": wrong,
        "abnormal_flagged": right,
        "recall": recall,
        "f1": 2 * right / (2 * right + wrong + len(abnormal) - right),
        "f1_deeplog": 2 * recall * rare / (recall * rare + false_rate * usual + rare),
    }


def _single(model: EventModel, sessions: Sequence[Sequence[int]]) -> float:
    """Return the microseconds for one event, from the state of a stream to its next state as bytes. The result is the
    minimum over all sessions, which other programs affect least.
    """
    times = []
    for events in sessions:
        begun, state = time.process_time(), None
        for event in events:
            _, state = model.update([event], state)
        times.append((time.process_time() - begun) / len(events))
    return 1e6 * min(times)

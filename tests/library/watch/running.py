"""Watches in tests, with a clock of their own."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

from rfa.library.watch.config import Config
from rfa.library.watch.config_file import parse_config
from rfa.library.watch.sink import JsonLines
from rfa.library.watch.storage import FileStorage, Storage
from rfa.library.watch.store import Store
from rfa.library.watch.watch import Watch

START = 1_700_000_040.0
STEP = 60.0


def config_for(url: str, *, query: str = 'name = "q"\nexpr = "up"', history: str = "30m", expire: str = "1h") -> Config:
    top = f'step = "1m"\nhistory = "{history}"\ndelay = 0\nexpire = "{expire}"\n'
    return parse_config(f'{top}[source.prometheus]\nurl = "{url}"\n[[query]]\n{query}\n', "test")


class Running:
    """A watch whose time is that of the test, and the rows that it wrote."""

    def __init__(self, config: Config, state: Path | Storage | None = None, keys: tuple[bytes, ...] = ()) -> None:
        self.config, self.now = config, START
        self._out = io.BytesIO()
        storage = FileStorage(state) if isinstance(state, Path) else state
        self._store = None if storage is None else Store(storage, keys)
        try:
            self.watch = Watch(config, self._store, lambda: self.now)
        except ValueError:
            self.abandon()
            raise
        self.watch.sinks.append(JsonLines(only_alarms=False, out=self._out))

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self.watch.pull()
            self.now += STEP

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._out.getvalue().splitlines()]

    def abandon(self) -> None:
        """End as a killed process does: without storing anything."""
        if self._store is not None:
            self._store.close()

    def rows_after_restart(self, state: Path | Storage, keys: tuple[bytes, ...] = ()) -> list[dict[str, Any]]:
        """The rows of one step of a watch that begins from what this one stored."""
        again = Running(self.config, state, keys)
        again.now = self.now
        again.step(1)
        again.abandon()
        return again.rows

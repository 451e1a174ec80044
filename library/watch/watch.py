"""Run a watch, which consists of a source, the filters of the queries, the sinks, and the store for the states.

Each step reads new observations, filters them, writes the outputs, and confirms the rows in the store. If the process
ends after it has written outputs and before it has confirmed their rows, a restart reads the same rows and writes the
same outputs again. Rows are therefore filtered exactly once, and written at least once. From Kafka to Kafka, outputs
are written exactly once (see `rfa.library.watch.kafka`).
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from rfa.library.watch.config import Config
from rfa.library.watch.config_file import load_config
from rfa.library.watch.exposition import output_samples, own_samples, render
from rfa.library.watch.feeds import Feed, feed_of
from rfa.library.watch.filters import QueryFilter, Rows, Samples, waves
from rfa.library.watch.history import QuerySource, delay_of, is_counter_query, last_step, read_parts
from rfa.library.watch.outputs import has_transactions, make_sinks
from rfa.library.watch.prometheus import Prometheus, SourceError
from rfa.library.watch.pushed import Router, read_messages
from rfa.library.watch.reload import reloadable
from rfa.library.watch.sink import Sink
from rfa.library.watch.store import Cursors, Store, StoreUnavailable
from rfa.library.watch.warmup import warm_up

logger = logging.getLogger("rfa.watch")
# Amount of work after which the states are stored again, in seconds and in multiples of the time to store them. A
# restart repeats at most this much work.
SAVE_AFTER_SECONDS: Final = 10.0
SAVE_AFTER_SAVES: Final = 10.0
# Maximum time by which a pushed observation may be later than the system clock. The same limit applies to a cursor,
# which is later if the clock was set back.
MOST_AHEAD_SECONDS: Final = 600.0


class Watch:
    """Runs the filters of a configuration, with their sinks and their store.

    Args:
        config: The configuration.
        store: Store for the states. If it is None, the states are lost at the end.
        now: Function that returns the current time in seconds since 1970.
        source: Source that answers queries instead of the configured server.

    Raises:
        ValueError, FileNotFoundError: If a model cannot be loaded, or the stored states cannot be used.
        SourceError: If the type of a metric must be requested from the server, and the server does not respond.
        OSError: If the store or Kafka cannot be used.
    """

    def __init__(
        self,
        config: Config,
        store: Store | None = None,
        now: Callable[[], float] = time.time,
        source: QuerySource | None = None,
    ) -> None:
        self._now, self._store, self._source = now, store, source
        self._lock = threading.RLock()
        self._work = self._save_seconds = 0.0
        self._next_expiry: dict[str, float] = {}
        names = ("steps_total", "step_seconds_total", "messages_refused_total", "store_errors_total")
        self.counts = {f"rfa_watch_{name}": 0.0 for name in names}
        self.errors: dict[str, int] = {}
        self.reloads = {"success": 0, "failure": 0}
        self.cursors: Cursors = {}
        self.sinks: list[Sink] = []
        self._failure: Exception | None = None
        self._stop = threading.Event()
        self._configure(config, self._make_filters(config))
        self.sinks = make_sinks(config, self._store)
        if store is not None:
            self.cursors, lost = store.load(self.filters, self._replay)
            for name in lost:
                logger.warning(
                    "query %s restarts from empty states, because its expression, type or model has changed", name
                )
            store.save(self.filters, self.cursors)

    def _make_filters(self, config: Config) -> dict[str, QueryFilter]:
        endpoint = config.source.prometheus
        prometheus = Prometheus(endpoint) if endpoint is not None and self._source is None else None
        return {
            query.name: QueryFilter(query, config.step, is_counter=is_counter_query(query, prometheus))
            for query in config.query
        }

    def _configure(self, config: Config, filters: dict[str, QueryFilter]) -> None:
        self.config, self.filters = config, filters
        endpoint = config.source.prometheus
        self._queries = self._source or (None if endpoint is None else Prometheus(endpoint))
        self._router = Router(config.query)

    def reload(self, path: Path) -> bool:
        """Replace the configuration. If the new configuration is invalid, the current one remains in use. Return
        whether the configuration was replaced.

        Listening addresses and the storage of the states do not change. The states of queries with the same expression,
        type and model are kept. The other queries read their history first.
        """
        try:
            config = reloadable(self.config, load_config(path))
            filters = self._make_filters(config)
            new = {name: one for name, one in filters.items() if not self._continues(name, one)}
            cursors, refused = warm_up(config, new, self._now())
            with self._lock:
                kept = {name for name, one in filters.items() if self._continues(name, one)}
                for name in kept:
                    filters[name].take_over(self.filters[name])
                self._replace_sinks(config)
                present = {name: at for name, at in self.cursors.items() if name in kept or name not in self.filters}
                self.cursors = {**cursors, **present}
                self.counts["rfa_watch_messages_refused_total"] += refused
                self._configure(config, filters)
                self.save()
        except (ValueError, OSError, SourceError) as error:
            logger.error("the configuration was not reloaded: %s", error)
            self.reloads["failure"] += 1
            return False
        logger.info("the configuration was reloaded: %s", path)
        self.reloads["success"] += 1
        return True

    def _continues(self, name: str, one: QueryFilter) -> bool:
        """Return whether `one` can continue with the states of the current filter of the query `name`."""
        return name in self.cursors and name in self.filters and one.fits(self.filters[name])

    def _replace_sinks(self, config: Config) -> None:
        """Close the current sinks, and open the sinks of a new configuration. If the new sinks cannot be opened, open
        the previous ones again."""
        for sink in self.sinks:
            sink.close()
        try:
            self.sinks = make_sinks(config, self._store)
        except (ValueError, OSError):
            self.sinks = make_sinks(self.config, self._store)
            raise

    # Rows.

    def _replay(self, some: Sequence[tuple[QueryFilter, Rows]], cursors: Cursors) -> None:
        """Filter stored rows again, and write their outputs if a sink has not made them visible."""
        sinks = [sink for sink in self.sinks if not sink.is_committed(cursors)]
        for one, rows in some:
            for wave in waves(rows) if sinks else [rows]:
                for scored in one.apply(wave):
                    for sink in sinks:
                        sink.write(one, scored)
        for sink in sinks:
            sink.confirm(cursors)

    def ingest(self, rows: Mapping[str, Rows], cursors: Cursors, *, is_silent: bool = False) -> None:
        """Filter rows, write their outputs, and confirm them.

        Args:
            rows: Rows of each query.
            cursors: Positions of the sources after these rows.
            is_silent: Whether the rows are history, whose outputs are not written.

        Raises:
            StoreUnavailable: If the rows were filtered, but cannot be stored at present. The next call stores them.
        """
        begin = time.monotonic()
        with self._lock:
            for name, some in rows.items():
                one = self.filters[name]
                for wave in [some] if is_silent else waves(some):
                    for scored in one.apply(wave, is_history=is_silent):
                        for sink in () if is_silent else self.sinks:
                            sink.write(one, scored)
            self.cursors |= cursors
            self._work += time.monotonic() - begin
            if not is_silent:
                for sink in self.sinks:
                    sink.flush()
                if self._store is not None:
                    self._confirm(self._store, rows, cursors)
                for sink in self.sinks:
                    sink.confirm(cursors)
            if self._work > max(SAVE_AFTER_SECONDS, SAVE_AFTER_SAVES * self._save_seconds) and not is_silent:
                self.save()

    def _confirm(self, store: Store, rows: Mapping[str, Rows], cursors: Cursors) -> None:
        try:
            if cursors or any(len(some) or some.new or some.gone for some in rows.values()):
                store.append(rows, cursors)
            else:
                store.flush()
        except StoreUnavailable:
            self.counts["rfa_watch_store_errors_total"] += 1
            raise

    def save(self) -> None:
        """Store all states. If this is not possible at present, the journal grows until the next attempt."""
        with self._lock:
            begin = time.monotonic()
            if self._store is not None:
                try:
                    self._store.save(self.filters, self.cursors)
                except OSError as error:
                    self.counts["rfa_watch_store_errors_total"] += 1
                    logger.error("the states could not be stored: %s", error)
            self._work, self._save_seconds = 0.0, time.monotonic() - begin

    def push(
        self, samples: Sequence[Samples], cursors: Cursors | None = None, *, only: Collection[str] | None = None
    ) -> None:
        """Filter pushed observations with each query that selects them. Return when the outputs are written and the
        rows are stored.

        Args:
            samples: Observations of each series.
            cursors: Positions of the source after these observations, which are stored with the rows.
            only: Names of queries. If it is set, only these queries process the observations, as history without
                outputs.

        Raises:
            StoreUnavailable: If the rows were filtered, but cannot be stored at present. The next call stores them.
        """
        with self._lock:
            found, now = self._router.route(samples), self._now()
            rows = {
                name: self.filters[name].admit(some, now + MOST_AHEAD_SECONDS)
                for name, some in found.items()
                if only is None or name in only
            }
            last = {name: min(float(some.times.max()), now) for name, some in rows.items() if len(some)}
            for name, t in last.items():
                if t >= self._next_expiry.get(name, -math.inf):
                    rows[name].gone = self.filters[name].expired(t - self.config.expire, rows[name])
                    self._next_expiry[name] = t + self.config.step
            self.ingest(rows, {**(cursors or {}), **last}, is_silent=only is not None)

    def push_messages(
        self, messages: Sequence[bytes], cursors: Cursors | None = None, *, only: Collection[str] | None = None
    ) -> None:
        """Filter the observations in JSON messages. See `push`."""
        samples, refused = read_messages(messages, self._now())
        self.counts["rfa_watch_messages_refused_total"] += refused
        self.push(samples, cursors, only=only)

    def warm_up(self) -> None:
        """Read the history of pushed queries that have no series yet, if the configuration has a source for it.

        Raises:
            OSError, ValueError: If the history cannot be read.
        """
        new = {name: one for name, one in self.filters.items() if name not in self.cursors}
        cursors, refused = warm_up(self.config, new, self._now())
        self.counts["rfa_watch_messages_refused_total"] += refused
        if cursors:
            self.cursors |= cursors
            self.save()

    # Queries of Prometheus.

    def pull(self) -> None:
        """Read and filter all steps up to now. If a query fails, its step is read again at the next time step."""
        begin = time.monotonic()
        assert self._queries is not None
        for name in self.filters:
            if self._stop.is_set():
                return
            try:
                self._pull(name, last_step(self.config, self._queries, self._now()), self._queries)
            except (SourceError, StoreUnavailable) as error:
                self.errors[name] = self.errors.get(name, 0) + 1
                logger.warning("query %s: %s", name, error)
        self.counts["rfa_watch_steps_total"] += 1
        self.counts["rfa_watch_step_seconds_total"] += time.monotonic() - begin

    def _until_next_step(self) -> float:
        try:
            delay = 0.0 if self._queries is None else delay_of(self.config, self._queries)
        except SourceError:
            delay = 0.0
        return self.config.step - (self._now() - delay) % self.config.step

    def _pull(self, name: str, end: float, queries: QuerySource) -> None:
        one, step = self.filters[name], self.config.step
        last = self.cursors.get(name)
        silent_until = end if last is None else -math.inf
        if last is not None and last > end + max(MOST_AHEAD_SECONDS, step):
            logger.warning("query %s: the system clock was set back by %.0f s", name, last - end)
            last = self.cursors[name] = end  # its series drop observations that they have filtered before
        begin = self.config.history_begin(end) if last is None else last
        for to, samples in read_parts(queries, one.query.expr, (begin, end), step):
            with self._lock:
                self._take(one, samples, to, is_silent=to <= silent_until)
            if self._stop.is_set():
                return  # the history is incomplete, so the next start reads it again
        if last is None:
            with self._lock:
                self.cursors[name] = end
                self.save()
            series = len(one.labels)
            logger.info("query %s: read %d observations of %d series as history", name, one.observations, series)

    def _take(self, one: QueryFilter, samples: Sequence[Samples], to: float, *, is_silent: bool) -> None:
        rows = one.admit(samples, to)
        rows.gone = one.expired(to - self.config.expire, rows)
        self.ingest({one.query.name: rows}, {} if is_silent else {one.query.name: to}, is_silent=is_silent)

    def run(self, stop: threading.Event, hangup: threading.Event, path: Path) -> None:
        """Run the watch until the event `stop` is set, or until a feed has ended."""
        self._stop = stop
        feed = feed_of(self.config, is_committed=has_transactions(self.config))
        thread = threading.Thread(target=self._read, args=(feed, stop), name="watch-feed", daemon=True)
        if feed is not None:
            thread.start()
        while not stop.is_set():
            if hangup.is_set():
                hangup.clear()
                self.reload(path)
            if self._queries is not None:
                self.pull()
            end = time.monotonic() + self._until_next_step()
            while not stop.is_set() and not hangup.is_set() and (left := end - time.monotonic()) > 0:
                stop.wait(min(left, 1.0))
        if feed is not None:
            thread.join()
        self.close()
        if self._failure is not None:
            raise self._failure

    def _read(self, feed: Feed, stop: threading.Event) -> None:
        try:
            feed.run(self, stop)
        except Exception as error:
            self._failure = error
        finally:
            stop.set()

    def close(self) -> None:
        """Store the states, and close the sinks and the store.

        After an error, the states are not stored and the journal is kept, because it may contain rows whose outputs are
        not committed in Kafka.
        """
        with self._lock:
            for sink in self.sinks:
                sink.close()
            if self._failure is None:
                self.save()
            if self._store is not None:
                self._store.close()

    # Metrics.

    def metrics(self) -> str:
        """Return the text of `/metrics`."""
        with self._lock:
            samples = [one for each in self.filters.values() for one in output_samples(each)]
            samples += own_samples(self.filters.values())
            samples += [(name, "counter", value, {}) for name, value in self.counts.items()]
            samples += [
                ("rfa_watch_source_errors_total", "counter", count, {"query": name})
                for name, count in self.errors.items()
            ]
            samples += [
                (f"rfa_watch_requests_{what}_total", "counter", count, {"sink": box.name})
                for sink in self.sinks
                if (box := sink.outbox) is not None
                for what, count in (("sent", box.sent), ("dropped", box.dropped))
            ]
            samples += [
                ("rfa_watch_requests_waiting", "gauge", sink.outbox.waiting, {"sink": sink.outbox.name})
                for sink in self.sinks
                if sink.outbox is not None
            ]
            samples += [
                ("rfa_watch_reloads_total", "counter", count, {"result": result})
                for result, count in self.reloads.items()
            ]
            samples += [
                ("rfa_watch_last_step_seconds", "gauge", cursor, {"query": name})
                for name, cursor in self.cursors.items()
                if isinstance(cursor, float)
            ]
        return render(samples)

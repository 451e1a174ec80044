"""Read the configuration of `rfa watch`. It is a TOML file, or a YAML file if pyyaml is installed.

Options for alarms and outputs have the same names and checks as in `rfa.Stream` and `POST /filter`.
"""

from __future__ import annotations

import math
import re
from base64 import b64encode
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from rfa.data.durations import SECONDS, duration
from rfa.library.options import OutputOptions
from rfa.library.watch.selectors import Selector, parse_selector

MOST_QUERIES: Final = 1_000
MOST_SERIES: Final = 1_000_000
SHORTEST_STEP: Final = 0.1
# A year of steps of three seconds.
MOST_HISTORY_STEPS: Final = 10_000_000
# Prometheus reads a lone m as minutes, but `duration` does not.
_MINUTES: Final = re.compile(r"(\d+)m")


def _seconds(value: Any) -> float:
    text = str(value).strip()
    number, unit = duration(_MINUTES.sub(r"\1min", text) if _MINUTES.fullmatch(text) else text) or (0.0, None)
    if unit is None:
        raise ValueError(f'must be a positive duration such as "15s", "5m" or "1d", got {value!r}')
    return number * SECONDS[unit]


def _check_url(url: str) -> str:
    parts = urlsplit(url)
    is_clean = url.isprintable() and " " not in url and not parts.fragment and (parts.port is None or parts.port > 0)
    if parts.scheme not in ("http", "https") or not parts.hostname or not is_clean:
        raise ValueError(f'must be a URL such as "http://127.0.0.1:9090", got {url!r}')
    if parts.username is not None:
        raise ValueError("must not contain a user; set the keys user and password_file instead")
    return url.rstrip("/")


def _check_listen(address: str) -> str:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise ValueError(f'must be HOST:PORT such as "127.0.0.1:9464", got {address!r}')
    return address


Seconds = Annotated[float, BeforeValidator(_seconds)]
Url = Annotated[str, AfterValidator(_check_url)]
Listen = Annotated[str, AfterValidator(_check_listen)]


class Section(BaseModel):
    """Base class of a table in the configuration file."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Endpoint(Section):
    """Server to which requests are sent.

    Attributes:
        url: URL of the server.
        bearer_token_file: File that contains the bearer token. It is read again for each request.
        user: User name for basic authentication.
        password_file: File that contains the password of the user. It is read again for each request.
        headers: Additional headers of requests, such as a header that names the tenant.
        timeout: Timeout of each request in seconds.
    """

    url: Url
    bearer_token_file: Path | None = None
    user: Annotated[str, Field(pattern=r"^[^:]+$")] | None = None
    password_file: Path | None = None
    headers: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9-]+$")], str] = {}
    timeout: Seconds = 30.0

    @model_validator(mode="after")
    def _check(self) -> Endpoint:
        if (self.user is None) != (self.password_file is None):
            raise ValueError("set both user and password_file, or neither")
        if self.user is not None and self.bearer_token_file is not None:
            raise ValueError("set bearer_token_file or user, not both")
        return self

    def authorization(self) -> str | None:
        """Return the value of the header that authenticates requests, or None if no authentication is configured.

        Raises:
            OSError: If a file cannot be read.
            ValueError: If a file is not UTF-8 text.
        """
        if self.bearer_token_file is not None:
            return f"Bearer {self.bearer_token_file.read_text(encoding='utf-8').strip()}"
        if self.password_file is None:
            return None
        password = self.password_file.read_text(encoding="utf-8").strip()
        return f"Basic {b64encode(f'{self.user}:{password}'.encode()).decode()}"


class Receiver(Section):
    """HTTP server to which other programs send observations."""

    listen: Listen = "127.0.0.1:9465"


class Stdin(Section):
    """Standard input as a source, with one JSON message per line. See `rfa.library.watch.pushed`."""


class KafkaTopic(Section):
    """A Kafka topic.

    Attributes:
        brokers: Addresses HOST:PORT of Kafka brokers, separated by commas.
        topic: Name of the topic.
        client: Further settings for librdkafka, such as the SASL settings.
    """

    brokers: str
    topic: str
    client: dict[str, str | int | bool] = {}


class KafkaSource(KafkaTopic):
    """Kafka topic from which observations are read.

    Attributes:
        group: Consumer group for which the offsets are committed.
        replay: Length of the period before the first start whose messages are used as history, in seconds. They are
            filtered, but not reported.
    """

    group: str = "rfa-watch"
    replay: Seconds | None = None


class Warmup(Section):
    """History of pushed series. It is read before the first start, by range queries or from a file of messages.

    Attributes:
        prometheus: Server that is queried over the period `history`.
        file: File with one message per line, sorted by time within each series. See `rfa.library.watch.pushed`.
    """

    prometheus: Endpoint | None = None
    file: Path | None = None

    @model_validator(mode="after")
    def _check(self) -> Warmup:
        if (self.prometheus is None) == (self.file is None):
            raise ValueError("set exactly one of prometheus and file")
        return self


class Sources(Section):
    """Sources of observations. Exactly one must be set.

    Attributes:
        prometheus: Any server with the query API of Prometheus.
        remote_write: Prometheus or an agent writes to `/api/v1/write`.
        otlp: OpenTelemetry exporters write to `/v1/metrics`.
        kafka: Topic of a Kafka cluster.
        stdin: Lines of standard input.
    """

    prometheus: Endpoint | None = None
    remote_write: Receiver | None = None
    otlp: Receiver | None = None
    kafka: KafkaSource | None = None
    stdin: Stdin | None = None


class MetricsSink(Section):
    """Sink that serves the latest outputs of each series at `GET /metrics`."""

    listen: Listen = "127.0.0.1:9464"


class StdoutSink(Section):
    """Sink that prints one JSON line for each observation, or only for observations with an alarm."""

    rows: Literal["all", "alarms"] = "all"


class Sinks(Section):
    """Destinations of the outputs. The URL for remote write includes its path; the URL of Alertmanager does not."""

    metrics: MetricsSink | None = None
    stdout: StdoutSink | None = None
    remote_write: Endpoint | None = None
    alertmanager: Endpoint | None = None
    webhook: Endpoint | None = None
    kafka: KafkaTopic | None = None


class StateOptions(Section):
    """Storage for the states of the series, in a file or in Redis. The states are sealed with the keys in
    RFA_STATE_KEYS or RFA_STATE_KEYS_FILE.

    Attributes:
        file: File in which the states are stored.
        redis: URL of Redis. States in Redis must be sealed.
        password_file: File with the password of Redis, if the URL contains none.
        name: Name of this watch in Redis. Watches that use the same Redis server must have different names.
        outbox: Directory for requests to sinks that have not been delivered. By default, it is FILE.outbox, or the
            requests are stored in Redis.
    """

    file: Path | None = None
    redis: Annotated[str, Field(pattern=r"^rediss?://.+")] | None = None
    password_file: Path | None = None
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")] = "watch"
    outbox: Path | None = None

    @model_validator(mode="after")
    def _check(self) -> StateOptions:
        if (self.file is None) == (self.redis is None):
            raise ValueError("set exactly one of file and redis")
        if self.file is not None and (not self.file.name or self.file.is_dir()):
            raise ValueError(f"file: {str(self.file)!r} is a directory")
        return self

    def outbox_of(self, sink: str) -> Path | None:
        """Return the directory for the requests of a sink, or None if they are stored in Redis."""
        folder = self.outbox
        if folder is None and self.file is not None:
            folder = self.file.with_name(f"{self.file.name}.outbox")
        return None if folder is None else folder / sink


class Query(Section):
    """Query whose series are filtered.

    Attributes:
        name: Name of the query, which is a label of its outputs.
        expr: PromQL query.
        type: `gauge`, `counter` or `auto`. A counter is converted to its rate per second. `auto` asks the server for
            the type of a plain metric. If the server does not know it, the type is derived from the name.
        model: `auto` or `default` (see `rfa.Stream`).
        alarm: Alarm options, with the names of the fields of `alarm` in `POST /filter`.
        horizon: Horizons of the forecasts to export, such as "1h".
        level: Level of the intervals.
        minimum, maximum: Smallest and largest possible value.
        tz: Time zone of days, weeks and maintenance windows.
        series_limit: Maximum number of series. Further series are dropped.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
    expr: Annotated[str, Field(min_length=1, max_length=10_000)]
    type: Literal["auto", "gauge", "counter"] = "auto"
    model: Literal["auto", "default"] = "auto"
    alarm: dict[str, Any] = {"rate": "1/day"}
    horizon: Annotated[list[Seconds], Field(max_length=8)] = []
    level: Annotated[float, Field(gt=0, lt=1)] = 0.9
    minimum: float | None = None
    maximum: float | None = None
    tz: str = "UTC"
    series_limit: Annotated[int, Field(ge=1, le=MOST_SERIES)] = 1_000

    def options(self, step: float) -> OutputOptions:
        """Return the options of the filter. The first horizon is one step.

        Raises:
            ValueError: If an option is invalid. The message names it.
        """
        limits = (self.minimum, self.maximum)
        return OutputOptions.of((self.level,), (step, *self.horizon), self.alarm, limits=limits, tz=self.tz)

    @model_validator(mode="after")
    def _check_options(self) -> Query:
        if len(set(self.horizon)) < len(self.horizon):
            raise ValueError("horizon: the horizons must be different from each other")
        self.options(60.0)
        return self

    @property
    def selector(self) -> Selector | None:
        """Selector that `expr` consists of. None if `expr` is another kind of query, which only Prometheus supports."""
        return parse_selector(self.expr)


class Config(Section):
    """Content of a configuration file.

    Attributes:
        step: Time between two observations of a series, in seconds.
        history: Length of the period before the first start from which the filters learn, in seconds.
        source: Source of the observations.
        sink: Destinations of the outputs.
        state: Storage for the states. If None, the states are lost when the process exits.
        warmup: Source of the history of pushed series.
        delay: Seconds between a time step and its query, so that late scrapes are included. See
            `Prometheus.usual_delay`.
        expire: Time without values after which a series is removed, in seconds.
        query: Queries whose series are filtered.
    """

    step: Annotated[Seconds, Field(ge=SHORTEST_STEP)] = 60.0
    history: Seconds = 86_400.0
    delay: Annotated[
        float | None, BeforeValidator(lambda value: 0.0 if value in (0, "0", "0s") else _seconds(value))
    ] = None
    expire: Seconds = 3_600.0
    source: Sources
    sink: Sinks = Sinks()
    state: StateOptions | None = None
    warmup: Warmup | None = None
    query: Annotated[list[Query], Field(min_length=1, max_length=MOST_QUERIES)]

    def history_begin(self, end: float) -> float:
        """Return the last time step before the history that ends at a given time."""
        return end - math.ceil(self.history / self.step) * self.step

    @model_validator(mode="after")
    def _check(self) -> Config:
        if sum(getattr(self.source, name) is not None for name in Sources.model_fields) != 1:
            raise ValueError(f"source: set exactly one of {', '.join(Sources.model_fields)}")
        if self.warmup is not None and self.source.prometheus is not None:
            raise ValueError(
                "warmup is not supported with source.prometheus, which already provides the history; remove it"
            )
        if self.history > MOST_HISTORY_STEPS * self.step:
            raise ValueError(
                f"history: must be at most {MOST_HISTORY_STEPS:,} steps, got {self.history / self.step:,.0f}; use a "
                "shorter history, or a longer step"
            )
        if self.source.prometheus is None:
            for query in self.query:
                if query.selector is None:
                    raise ValueError(
                        f'query {query.name!r}: with this source, expr must be a selector such as up{{job="api"}}'
                    )
        names = [query.name for query in self.query]
        if repeated := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"query: the name {min(repeated)!r} is used twice; query names must be unique")
        return self

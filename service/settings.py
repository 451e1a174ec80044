"""Settings of the server in five groups, read from arguments and `RFA_*` environment variables."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, IPvAnyNetwork, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from rfa.runtime.bundle.locate import default_bundles
from rfa.runtime.choices import RuntimeName
from rfa.runtime.state.keys import read_keys
from rfa.service.machine import available_cores

PREFIX: Final = "RFA_"
# `rfa` reads these for every command.
OTHER_VARIABLES: Final = frozenset({"RFA_DEBUG"})
# Retired settings and the settings that replace them.
RETIRED: Final = {
    "RFA_MAX_SERIES_BYTES": "RFA_MAX_BODY_BYTES",
    "RFA_MAX_SERIES_OBSERVATIONS": "RFA_MAX_OBSERVATIONS",
    "RFA_MAX_ARROW_BYTES": "RFA_MAX_BODY_BYTES",
    "RFA_MAX_ARROW_OBSERVATIONS": "RFA_MAX_OBSERVATIONS",
}
# Filtering holds the interpreter lock for a fifth of its time. More threads would wait for each other.
USEFUL_THREADS: Final = 4
QuotaName = Literal["requests", "concurrent", "streams", "tokens", "observations"]


class ConfigurationError(ValueError):
    """Raised if the server must not start with these settings. The message states what to change."""


def _matching(pattern: str, message: str) -> AfterValidator:
    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise PydanticCustomError("form", message)  # type: ignore[arg-type]
        return value

    return AfterValidator(check)


def _separated_by(separator: str) -> BeforeValidator:
    def split(value: object) -> object:
        if isinstance(value, str):
            return tuple(part for text in value.split(separator) if (part := text.strip()))
        return value

    return BeforeValidator(split)


Names = Annotated[tuple[str, ...], NoDecode, _separated_by(",")]
Networks = Annotated[tuple[IPvAnyNetwork, ...], NoDecode, _separated_by(",")]
Paths = Annotated[tuple[Path, ...], NoDecode, _separated_by(os.pathsep)]
Device = Annotated[
    str,
    _matching(
        r"auto|cpu|cuda(?::[0-9]{1,2})?",
        "must be auto, cpu, cuda or a numbered NVIDIA GPU such as cuda:1 (the first is cuda:0)",
    ),
]
Sessions = Annotated[
    str,
    _matching(
        r"off|memory|rediss?://.+",
        "must be off, memory or the URL of a Redis server, such as redis://host:6379/0 or rediss://host:6379/0",
    ),
]


class SettingsGroup(BaseSettings):
    """Base class of a group of settings. Settings that are not given are read from environment variables."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True)


class ServerSettings(SettingsGroup):
    """Settings for addresses, supervision and logs."""

    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = Field(default=8000, ge=0, le=65535, description="Port to listen on; 0 chooses a free one.")
    health_port: int | None = Field(
        default=None,
        ge=0,
        le=65535,
        description="Separate port for /health, /ready and /metrics; 0 chooses a free one.",
    )
    stall_seconds: float = Field(
        default=30.0, gt=0, description="Seconds without progress after which /ready returns an error."
    )
    shutdown_grace_seconds: int = Field(
        default=10, ge=0, description="Maximum seconds to finish running requests when the server stops."
    )
    log_format: Literal["text", "json"] = Field(
        default="text", description="Format of the log. `json` writes one line per request."
    )
    tracing: bool = Field(default=False, description="Enable OpenTelemetry tracing. The OTEL_* variables configure it.")


class LimitSettings(SettingsGroup):
    """Limits on requests, connections, memory and clients, for each process."""

    max_running: int = Field(default=64, ge=1, description="Maximum number of requests that hold model state.")
    max_waiting: int = Field(
        default=256, ge=0, description="Maximum number of requests in the queue. Further requests get status 429."
    )
    queue_seconds: float = Field(
        default=10.0, gt=0, description="Maximum seconds that a request waits in the queue before it gets status 429."
    )
    max_streams: int = Field(default=4_096, ge=1, description="Maximum number of live streams, including idle ones.")
    stream_idle_seconds: float = Field(
        default=3_600.0, gt=0, description="Seconds without an observation after which a live stream ends."
    )
    stream_buffer: int = Field(
        default=256,
        ge=1,
        description="Number of unread events at which a request is paused. Expensive events count more.",
    )

    max_connections: int = Field(default=16_384, ge=1, description="Maximum number of open connections.")
    header_timeout_seconds: float = Field(
        default=10.0,
        gt=0,
        description="Maximum seconds from the start of a connection to the end of the request headers.",
    )
    body_timeout_seconds: float = Field(
        default=30.0, gt=0, description="Maximum seconds between two parts of a request body."
    )
    min_body_rate: int = Field(
        default=8_192,
        ge=1,
        description="Minimum bytes per second of a request body, checked after body_timeout_seconds.",
    )
    send_timeout_seconds: float = Field(
        default=30.0, gt=0, description="Seconds after which a client that does not read its reply is disconnected."
    )
    # This exceeds the usual idle timeout of a proxy's connection pool. The proxy then closes first and never writes to
    # a connection that is being closed.
    keep_alive_seconds: int = Field(default=75, ge=1, description="Seconds after which an idle connection is closed.")
    max_header_bytes: int = Field(default=32_768, ge=1_024, description="Maximum size of the request headers in bytes.")
    max_message_bytes: int = Field(default=262_144, ge=1_024, description="Maximum bytes of a WebSocket message.")

    max_memory: int | None = Field(
        default=None,
        ge=1,
        description=(
            "Maximum memory of a process in bytes. The default is the memory in use after loading plus 192 MiB for "
            "requests, or less if the container or machine has less memory."
        ),
    )
    max_body_bytes: int = Field(
        default=2_000_000,
        ge=1_000,
        description="Maximum size of a request body in bytes. The limit for /filter is twice as high for JSON and "
        "24 times as high for Arrow streams.",
    )
    max_body_values: int = Field(
        default=250_000,
        ge=1_000,
        description="Maximum number of numbers, strings, nulls, arrays and objects in a request body.",
    )
    max_json_depth: int = Field(default=32, ge=8, description="Maximum nesting depth of a JSON request body.")
    max_prompt_tokens: int = Field(default=16_384, ge=1, description="Maximum number of tokens in a prompt.")
    prefix_cache_bytes: int = Field(
        default=33_554_432, ge=0, description="Maximum bytes of cached states of recent prompts. 0 disables the cache."
    )
    max_new_tokens: int = Field(default=4_096, ge=1, description="Maximum number of generated tokens per request.")
    max_choices: int = Field(
        default=128, ge=1, description="Maximum number of continuations per request, for all prompts together."
    )
    max_attention_tokens: int = Field(
        default=4_096,
        ge=2,
        description='Maximum number of prompt and generated tokens in a request with decode="attention".',
    )
    max_observations: int = Field(
        default=20_000,
        ge=1,
        description=(
            "Maximum number of observations in a series. For a request with many series, the limit for all of them "
            "is 5 times as high in JSON and 60 times as high in Arrow."
        ),
    )
    max_reply_numbers: int = Field(
        default=2_000_000,
        ge=1_000,
        description="Maximum number of numbers in a reply. In a request with many series, it applies to each series.",
    )
    max_series: int = Field(default=10_000, ge=1, description="Maximum number of series per request.")
    max_series_numbers: int = Field(
        default=50_000_000,
        ge=1_000,
        description="Maximum number of numbers in the reply to a request with many series.",
    )
    quota_streams: int = Field(
        default_factory=lambda given: max(1, given["max_streams"] * 3 // 4),
        ge=1,
        description=(
            "Maximum number of live streams for each API key, or for each address if there are no keys. The default "
            "is three quarters of max_streams."
        ),
    )
    quota_requests: float | None = Field(
        default=None, gt=0, description="Maximum number of requests per second for each API key."
    )
    quota_concurrent: int | None = Field(
        default=None, ge=1, description="Maximum number of concurrent requests for each API key."
    )
    quota_tokens: float | None = Field(
        default=None, gt=0, description="Maximum number of tokens per second for each API key, including prompt tokens."
    )
    quota_observations: float | None = Field(
        default=None, gt=0, description="Maximum number of observations per second for each API key."
    )

    @property
    def max_series_bytes(self) -> int:
        """Maximum size of a JSON body of /filter in bytes. It may contain many series."""
        return 2 * self.max_body_bytes

    @property
    def max_series_observations(self) -> int:
        """Maximum number of observations of all series in a JSON body."""
        return 5 * self.max_observations

    @property
    def max_arrow_bytes(self) -> int:
        """Maximum size of an Arrow stream of many series in bytes."""
        return 24 * self.max_body_bytes

    @property
    def max_arrow_observations(self) -> int:
        """Maximum number of observations of all series in an Arrow stream."""
        return 60 * self.max_observations


class SecuritySettings(SettingsGroup):
    """Settings for access to the server, and for trusted bundles."""

    api_keys: SecretStr | None = Field(
        default=None, description="API keys, separated by commas. Clients must send one of them."
    )
    api_keys_file: Path | None = Field(default=None, description="File with one API key per line.")
    insecure: bool = Field(default=False, description="Allow listening on a public address without API keys.")
    allowed_hosts: Names = Field(
        default=(),
        description=(
            "Accepted host names besides localhost and IP addresses, separated by commas. * accepts any name. The "
            "default is the name that the server listens on, or any name if there are API keys."
        ),
    )
    allowed_origins: Names = Field(
        default=(), description="Other origins whose web pages may use this server, separated by commas."
    )
    trusted_proxies: Networks = Field(
        default=(),
        description=(
            "Networks of trusted proxies, separated by commas. For their requests, the client address is taken from "
            "the X-Forwarded-For header."
        ),
    )
    trusted_keys: str | None = Field(
        default=None,
        description="Minisign public keys, separated by commas. Each bundle must be signed with one of them.",
    )
    trusted_keys_file: Path | None = Field(
        default=None, description="File with one Minisign public key per line, in the format of minisign.pub."
    )


class StateSettings(SettingsGroup):
    """Settings for state tokens and named sessions."""

    state_keys: SecretStr | None = Field(
        default=None,
        description=(
            "State keys that encrypt state tokens, separated by commas; each is 32 bytes in base64. New tokens use "
            "the first key."
        ),
    )
    state_keys_file: Path | None = Field(default=None, description="File with one state key per line.")
    state_audience: str = Field(
        default="rfa", description="Name of the deployment. State tokens of other deployments are rejected."
    )
    state_seconds: int = Field(default=86_400, ge=1, description="Lifetime of a state token in seconds.")
    sessions: Sessions = Field(
        default="off", description="Storage for named sessions: off, memory or the URL of a Redis server."
    )
    sessions_password_file: Path | None = Field(
        default=None, description="File with the password of the Redis server, used if the URL contains no password."
    )
    session_seconds: int = Field(default=86_400, ge=1, description="Seconds after which an unused session is deleted.")
    max_sessions: int = Field(default=262_144, ge=1, description="Maximum number of named sessions in memory.")
    max_session_bytes: int = Field(
        default=1_073_741_824, ge=1_000, description="Maximum total size of named sessions in memory, in bytes."
    )


class ModelSettings(SettingsGroup):
    """Settings for the served models, and for the processes, threads and devices that run them."""

    bundles: Paths = Field(
        default_factory=default_bundles,
        description="Bundle directories. In the environment variable, they are separated by `:`.",
    )
    max_bundle_bytes: int = Field(
        default=4_294_967_296, ge=1_000, description="Maximum total size of all bundles in bytes."
    )
    device: Device = Field(
        default="auto",
        description=(
            "Device for language models and long series: auto (the same as cpu), cpu, cuda or a numbered GPU such as "
            "cuda:1. Each process uses one GPU, starting with this one."
        ),
    )
    text_runtime: RuntimeName = Field(
        default="auto",
        description=(
            "Runtime for language models on a CPU. `auto` uses compiled if it supports the bundle, and onnx otherwise."
        ),
    )
    processes: int = Field(
        default_factory=lambda given: 1 if _is_gpu(given.get("device")) else available_cores(),
        ge=1,
        le=256,
        description="Number of server processes. The default is one per core, or one with a GPU.",
    )
    workers: int = Field(default=1, ge=1, le=256, description="Number of threads that run models in each process.")
    series_threads: int = Field(
        default_factory=lambda: min(available_cores(), USEFUL_THREADS),
        ge=1,
        le=256,
        description="Number of threads that filter the series of one request. The default is one per core, at most "
        "four.",
    )
    max_batch_rows: int = Field(
        default_factory=lambda given: 64 if _is_gpu(given.get("device")) else 24,
        ge=1,
        le=512,
        description=(
            "Maximum number of sequences that are decoded together in one step. The default is 24, or 64 with a GPU."
        ),
    )
    drift_every: int = Field(
        default=1_000,
        ge=0,
        description=(
            "On a CPU, decode every n-th text of a process again in both modes, and report the difference as "
            "rfa_decoder_drift_… in /metrics. 0 disables this check."
        ),
    )

    @property
    def is_on_gpu(self) -> bool:
        """Whether language models run on a GPU."""
        return _is_gpu(self.device)

    def gpu_of(self, process: int) -> int | None:
        """Return the index of the visible GPU that a server process uses, or None for the CPU."""
        return int(self.device.partition(":")[2] or 0) + process if self.is_on_gpu else None


def _is_gpu(device: str | None) -> bool:
    return str(device).startswith("cuda")


class Settings(BaseModel):
    """All settings. They are created from their names without groups, as in `Settings(port=0, max_running=8)`.

    Raises:
        ValidationError: If a value is out of bounds or a name is unknown.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    server: ServerSettings
    limits: LimitSettings
    security: SecuritySettings
    state: StateSettings
    models: ModelSettings

    def __init__(self, **values: Any) -> None:
        groups: dict[str, Any] = {
            name: {field: values.pop(field) for field in group.model_fields if field in values}
            for name, group in GROUPS.items()
        }
        super().__init__(**groups, **values)

    def flat(self) -> dict[str, Any]:
        """Return all values by their names without groups."""
        return {
            name: getattr(getattr(self, group), name) for group, kind in GROUPS.items() for name in kind.model_fields
        }

    def replace(self, **values: Any) -> Self:
        """Return a copy of these settings with some values replaced.

        Raises:
            ValidationError: If a value is out of bounds or a name is unknown.
        """
        return type(self)(**{**self.flat(), **values})


GROUPS: Final[dict[str, type[SettingsGroup]]] = {
    "server": ServerSettings,
    "limits": LimitSettings,
    "security": SecuritySettings,
    "state": StateSettings,
    "models": ModelSettings,
}
# All settings by their flat names.
FIELDS: Final[dict[str, FieldInfo]] = {
    name: field for group in GROUPS.values() for name, field in group.model_fields.items()
}


def check_names(environment: Mapping[str, str]) -> None:
    """Reject unknown variables that begin with `RFA_`, because a misspelt limit would have no effect.

    Raises:
        ConfigurationError: If there is an unknown variable. The message suggests similar names and contains no values.
    """
    valid = {PREFIX + name.upper() for name in FIELDS} | OTHER_VARIABLES
    for name in sorted(environment):
        if name.upper() in RETIRED:
            raise ConfigurationError(f"{name} was removed; set {RETIRED[name.upper()]} instead, which determines it")
        if name.upper().startswith(PREFIX) and name.upper() not in valid:
            meant = difflib.get_close_matches(name.upper(), sorted(valid), n=1)
            nearest = difflib.get_close_matches(name.upper(), sorted(valid), n=3, cutoff=0)
            hint = f"did you mean {meant[0]}?" if meant else f"the most similar names are {', '.join(nearest)}"
            raise ConfigurationError(f"environment variable {name} is not a setting of this server; {hint}")


def configured_keys(settings: Settings) -> tuple[bytes, ...]:
    """Return the configured state keys. The first one seals new tokens. The result is empty if no key is configured."""
    listed = settings.state.state_keys
    return read_keys(None if listed is None else listed.get_secret_value(), settings.state.state_keys_file)

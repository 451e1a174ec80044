"""Groups of settings, which are read from arguments and `RFA_*` environment variables."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, IPvAnyNetwork, SecretStr
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from rfa.runtime.bundle.locate import default_bundles
from rfa.runtime.choices import RuntimeName
from rfa.service.machine import available_cores

PREFIX: Final = "RFA_"
# A thread that filters series holds the interpreter lock for a fifth of the time, so more threads would wait for it.
USEFUL_THREADS: Final = 4


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
Port = Annotated[int, Field(ge=0, le=65535)]
OptionalPort = Annotated[int | None, Field(ge=0, le=65535)]
Positive = Annotated[int, Field(ge=1)]
OptionalPositive = Annotated[int | None, Field(ge=1)]
NonNegative = Annotated[int, Field(ge=0)]
# Limit on bytes or on numbers.
Thousands = Annotated[int, Field(ge=1_000)]
Threads = Annotated[int, Field(ge=1, le=256)]
Seconds = Annotated[float, Field(gt=0)]
# Number per second. None means no limit.
Rate = Annotated[float | None, Field(gt=0)]


class SettingsGroup(BaseSettings):
    """Base class of groups of settings. Without an argument, a setting is read from its environment variable."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True)


class ServerSettings(SettingsGroup):
    """Settings for addresses, supervision and logs."""

    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: Port = Field(default=8000, description="Port to listen on. With 0, a free port is chosen.")
    health_port: OptionalPort = Field(
        default=None, description="Separate port for /health, /ready and /metrics. With 0, a free port is chosen."
    )
    stall_seconds: Seconds = Field(
        default=30.0, description="Seconds without progress of the engine after which /ready returns an error."
    )
    shutdown_grace_seconds: NonNegative = Field(
        default=10, description="Maximum seconds for completing running requests when the server stops."
    )
    log_format: Literal["text", "json"] = Field(
        default="text", description="Format of log lines: text, or json for one JSON object per line."
    )
    tracing: bool = Field(default=False, description="Enable OpenTelemetry tracing. The OTEL_* variables configure it.")


class LimitSettings(SettingsGroup):
    """Limits on requests, connections, memory and clients. They apply to each process."""

    max_running: Positive = Field(default=64, description="Maximum number of requests that are processed concurrently.")
    max_waiting: NonNegative = Field(
        default=256, description="Maximum number of requests in the queue. Others are rejected with status 429."
    )
    queue_seconds: Seconds = Field(
        default=10.0, description="Maximum seconds in the queue before a request is rejected with status 429."
    )
    max_streams: Positive = Field(default=4_096, description="Maximum number of live streams, including idle ones.")
    stream_idle_seconds: Seconds = Field(
        default=3_600.0, description="Seconds without an observation after which a live stream ends."
    )
    stream_buffer: Positive = Field(
        default=256,
        description="Number of unread events at which a request is paused. An event with much data counts as several.",
    )

    max_connections: Positive = Field(default=16_384, description="Maximum number of open connections.")
    header_timeout_seconds: Seconds = Field(
        default=10.0,
        description="Maximum seconds until the headers of a request are complete, from the start of the connection.",
    )
    body_timeout_seconds: Seconds = Field(
        default=30.0, description="Maximum seconds between two parts of a request body."
    )
    min_body_rate: Positive = Field(
        default=8_192,
        description="Minimum mean rate of a request body in bytes per second, after body_timeout_seconds.",
    )
    send_timeout_seconds: Seconds = Field(
        default=30.0, description="Seconds after which a client that does not read its reply is disconnected."
    )
    # This is longer than the usual idle timeout of a proxy. The proxy therefore closes the connection first, and does
    # not write to a connection that the server closes.
    keep_alive_seconds: Positive = Field(default=75, description="Seconds after which an idle connection is closed.")
    max_header_bytes: int = Field(default=32_768, ge=1_024, description="Maximum size of the request headers in bytes.")
    max_message_bytes: int = Field(default=262_144, ge=1_024, description="Maximum bytes of a WebSocket message.")

    max_memory: OptionalPositive = Field(
        default=None,
        description=(
            "Maximum memory of a process in bytes. The default is the memory after loading the bundles plus 192 MiB "
            "for requests, or less if the container or machine has less memory."
        ),
    )
    max_body_bytes: Thousands = Field(
        default=2_000_000,
        description="Maximum size of a request body in bytes. For /filter, the limit is twice as high for JSON, and 24 "
        "times as high for Arrow streams with several series.",
    )
    max_body_values: Thousands = Field(
        default=250_000, description="Maximum number of JSON values in a request body, including arrays and objects."
    )
    max_json_depth: int = Field(default=32, ge=8, description="Maximum nesting depth of a JSON request body.")
    max_prompt_tokens: Positive = Field(default=16_384, description="Maximum number of tokens in a prompt.")
    prefix_cache_bytes: NonNegative = Field(
        default=33_554_432, description="Size of the cache of recent prompts in bytes. 0 disables the cache."
    )
    max_new_tokens: Positive = Field(default=4_096, description="Maximum number of tokens in a generated text.")
    max_choices: Positive = Field(
        default=128, description="Maximum number of continuations in a request, for all prompts together."
    )
    max_attention_tokens: int = Field(
        default=4_096,
        ge=2,
        description='Maximum number of prompt and generated tokens in a request with decode="attention".',
    )
    max_observations: Positive = Field(
        default=20_000,
        description=(
            "Maximum number of observations in a series. In a request with several series, the total number may be 5 "
            "times as high with JSON, and 60 times as high with Arrow."
        ),
    )
    max_reply_numbers: Thousands = Field(
        default=2_000_000,
        description="Maximum number of numeric values in a reply, or for each series in a reply to several series.",
    )
    max_series: Positive = Field(default=10_000, description="Maximum number of series in a request.")
    max_series_numbers: Thousands = Field(
        default=50_000_000, description="Maximum number of numeric values in a reply to several series."
    )
    quota_streams: Positive = Field(
        default_factory=lambda given: max(1, given["max_streams"] * 3 // 4),
        description=(
            "Maximum number of live streams for each API key, or for each address if there are no keys. The default "
            "is three quarters of max_streams."
        ),
    )
    quota_requests: Rate = Field(default=None, description="Maximum number of requests per second for each API key.")
    quota_concurrent: OptionalPositive = Field(
        default=None, description="Maximum number of concurrent requests for each API key."
    )
    quota_tokens: Rate = Field(
        default=None, description="Maximum number of tokens per second for each API key, including prompt tokens."
    )
    quota_observations: Rate = Field(
        default=None, description="Maximum number of observations per second for each API key."
    )

    @property
    def max_series_bytes(self) -> int:
        """Maximum size in bytes of a JSON body for /filter, which may contain several series."""
        return 2 * self.max_body_bytes

    @property
    def max_series_observations(self) -> int:
        """Maximum total number of observations of all series in a JSON body."""
        return 5 * self.max_observations

    @property
    def max_arrow_bytes(self) -> int:
        """Maximum size in bytes of an Arrow stream with several series."""
        return 24 * self.max_body_bytes

    @property
    def max_arrow_observations(self) -> int:
        """Maximum total number of observations of all series in an Arrow stream."""
        return 60 * self.max_observations


class SecuritySettings(SettingsGroup):
    """Settings for access to the server, and for trusted bundles."""

    api_keys: SecretStr | None = Field(
        default=None, description="API keys, separated by commas. If there are any, clients must send one of them."
    )
    api_keys_file: Path | None = Field(default=None, description="File with one API key per line.")
    insecure: bool = Field(default=False, description="Allow listening on a public address without API keys.")
    allowed_hosts: Names = Field(
        default=(),
        description=(
            "Accepted host names in addition to localhost, IP addresses and the name in RFA_HOST, separated by commas. "
            "* accepts any name. With API keys, the default is *."
        ),
    )
    allowed_origins: Names = Field(
        default=(), description="Origins of other web pages that may use this server, separated by commas."
    )
    trusted_proxies: Networks = Field(
        default=(),
        description=(
            "Networks of trusted proxies, separated by commas. For requests from these proxies, the address of the "
            "client is read from the header X-Forwarded-For."
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
            "Keys that encrypt state tokens, separated by commas. Each key is 32 bytes in base64. New tokens are "
            "encrypted with the first key."
        ),
    )
    state_keys_file: Path | None = Field(default=None, description="File with one state key per line.")
    state_audience: str = Field(
        default="rfa", description="Name of the deployment. State tokens from other deployments are rejected."
    )
    state_seconds: Positive = Field(default=86_400, description="Lifetime of a state token in seconds.")
    sessions: Sessions = Field(
        default="off", description="Storage for named sessions: off, memory or the URL of a Redis server."
    )
    sessions_password_file: Path | None = Field(
        default=None, description="File with the password of the Redis server, if the URL does not contain it."
    )
    session_seconds: Positive = Field(default=86_400, description="Seconds after which an unused session is deleted.")
    max_sessions: Positive = Field(default=262_144, description="Maximum number of named sessions in memory.")
    max_session_bytes: Thousands = Field(
        default=1_073_741_824, description="Maximum total size of named sessions in memory, in bytes."
    )


class ModelSettings(SettingsGroup):
    """Settings for the served models, and for the processes, threads and devices that run them."""

    bundles: Paths = Field(
        default_factory=default_bundles,
        description="Bundle directories, separated by `:` in the environment variable.",
    )
    max_bundle_bytes: Thousands = Field(
        default=4_294_967_296, description="Maximum total size of all bundles in bytes."
    )
    device: Device = Field(
        default="auto",
        description=(
            "Device for language models and long series: auto (the same as cpu), cpu, cuda or a numbered GPU such as "
            "cuda:1. With several processes, each one uses its own GPU, starting with this number."
        ),
    )
    text_runtime: RuntimeName = Field(
        default="auto",
        description=(
            "Runtime for language models on a CPU: compiled, onnx or auto. auto selects compiled if it supports the "
            "bundle, and onnx otherwise."
        ),
    )
    processes: Threads = Field(
        default_factory=lambda given: 1 if _is_gpu(given.get("device")) else available_cores(),
        description="Number of server processes. The default is one per core on a CPU, or a single process on a GPU.",
    )
    workers: Threads = Field(default=1, description="Number of threads that run models in each process.")
    series_threads: Threads = Field(
        default_factory=lambda: min(available_cores(), USEFUL_THREADS),
        description="Number of threads that filter the series of one request. The default is one per core, at most "
        "four.",
    )
    max_batch_rows: int = Field(
        default_factory=lambda given: 64 if _is_gpu(given.get("device")) else 24,
        ge=1,
        le=512,
        description=("Maximum number of sequences in a decoding step. The default is 24 on a CPU, and 64 on a GPU."),
    )
    drift_every: NonNegative = Field(
        default=1_000,
        description=(
            "Number n for comparing the decoding modes on a CPU. One of n texts is decoded again in both modes, and "
            "the metrics rfa_decoder_drift_… report the difference. 0 disables this."
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

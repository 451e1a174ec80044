"""What an operator may set, from arguments or from `RFA_*` environment variables."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, IPvAnyNetwork, SecretStr, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from rfa.runtime.bundle.locate import default_bundles
from rfa.runtime.choices import RuntimeName
from rfa.runtime.state.keys import read_keys
from rfa.service.machine import available_cores

# In the environment separated by commas.
Names = Annotated[tuple[str, ...], NoDecode]
QuotaName = Literal["requests", "concurrent", "streams", "tokens", "observations"]
# More would wait for each other: a fifth of what a series takes is in the interpreter, one thread at a time.
USEFUL_THREADS = 4
PREFIX = "RFA_"
# Of what is written in a form of its own: the form, and that in words that need no knowledge of patterns.
FORMS = {
    "device": (
        re.compile(r"auto|cpu|cuda(?::[0-9]{1,2})?"),
        "must be auto, cpu, cuda, or cuda:1 and the like, GPUs of NVIDIA being counted from 0",
    ),
    "sessions": (
        re.compile(r"off|memory|rediss?://.+"),
        "must be off, memory, or a Redis as redis://host:6379/0 or rediss://…",
    ),
}
# Read by `rfa` itself, whatever the command.
NOT_SETTINGS = frozenset({"RFA_DEBUG"})


class ConfigurationError(ValueError):
    """Settings with which the server must not start; the message tells what to change."""


class Settings(BaseSettings):
    """Address, bundles and limits of one server process."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True)

    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535, description="0 takes a free port")
    health_port: int | None = Field(
        default=None,
        ge=0,
        le=65535,
        description="/health, /ready and /metrics on a port of their own, too; 0 takes a free one",
    )
    device: str = Field(
        default="auto",
        description="of language models, and of long series of the kind series: auto, cpu, cuda or cuda:1; auto is the "
        "CPU. Of several server processes each has a GPU of its own, from that one on",
    )
    text_runtime: RuntimeName = Field(
        default="auto",
        description="of language models on a CPU; auto is compiled where it can run the bundle, else onnx",
    )
    bundles: Annotated[tuple[Path, ...], NoDecode] = Field(
        default_factory=default_bundles, description="bundle directories; in the environment separated by `:`"
    )
    max_bundle_bytes: int = Field(
        default=4_294_967_296, ge=1_000, description="all bundles together, of which the server keeps a copy"
    )
    trusted_keys: str | None = Field(
        default=None, description="public keys of minisign, separated by commas; one must have signed each bundle"
    )
    trusted_keys_file: Path | None = Field(default=None, description="the same, one key a line, as in minisign.pub")
    processes: int = Field(
        default_factory=lambda given: 1 if str(given.get("device")).startswith("cuda") else available_cores(),
        ge=1,
        le=256,
        description="server processes on one port; by default one per core, or one where a GPU is asked for: more take "
        "a GPU each",
    )
    workers: int = Field(default=1, ge=1, le=256, description="threads that run models in each process")

    max_running: int = Field(default=64, ge=1, description="requests that hold model state at the same time")
    max_streams: int = Field(default=4_096, ge=1, description="live filter streams, idle ones included, per process")
    stream_idle_seconds: float = Field(
        default=3_600.0, gt=0, description="a live stream without an observation for so long ends, with its state"
    )
    quota_streams: int = Field(
        default_factory=lambda given: max(1, given.get("max_streams", 1) * 3 // 4),
        ge=1,
        description="live streams of one key, without keys of one address; by default three quarters of max_streams",
    )
    quota_requests: float | None = Field(default=None, gt=0, description="requests of one key a second")
    quota_concurrent: int | None = Field(default=None, ge=1, description="requests of one key under way")
    quota_tokens: float | None = Field(default=None, gt=0, description="tokens of one key a second, prompts included")
    quota_observations: float | None = Field(default=None, gt=0, description="observations of one key a second")
    max_waiting: int = Field(default=256, ge=0, description="requests queued beyond that before 429")
    max_batch_rows: int = Field(
        default_factory=lambda given: 64 if str(given.get("device")).startswith("cuda") else 24,
        ge=1, le=512, description="sequences in one decode step; default 24, with a GPU 64",
    )  # fmt: skip
    drift_every: int = Field(
        default=1_000,
        ge=0,
        description="every so many-th text of a process is read again in both decoding modes, beside the requests, for "
        "rfa_decoder_drift_… of /metrics; 0 is none. On a CPU only",
    )
    stream_buffer: int = Field(
        default=256, ge=1, description="events that a reader may lag before its request pauses; costly ones count more"
    )
    stall_seconds: float = Field(default=30.0, gt=0, description="work without progress for so long is not ready")
    send_timeout_seconds: float = Field(
        default=30.0, gt=0, description="a reader that takes nothing for so long is dropped"
    )
    shutdown_grace_seconds: int = Field(default=10, ge=0, description="time for running requests after a stop signal")
    queue_seconds: float = Field(default=10.0, gt=0, description="a request that waits longer is refused with 429")
    header_timeout_seconds: float = Field(default=10.0, gt=0, description="from connection to the end of the headers")
    body_timeout_seconds: float = Field(default=30.0, gt=0, description="longest gap between two pieces of a body")
    min_body_rate: int = Field(
        default=8_192, ge=1, description="bytes a second at which a body must come once that time is over"
    )
    keep_alive_seconds: int = Field(
        # Above the usual idle time of a proxy's pool: the proxy closes first and never writes into a closing socket.
        default=75,
        ge=1,
        description="an idle connection is closed after so long",
    )
    max_connections: int = Field(default=16_384, ge=1, description="open sockets per process")
    max_header_bytes: int = Field(default=32_768, ge=1_024)
    max_message_bytes: int = Field(default=262_144, ge=1_024, description="one WebSocket message")

    max_memory: int | None = Field(
        default=None,
        ge=1,
        description="bytes of memory of one process; by default what it holds once loaded and 192 MiB for requests, or "
        "its share of the container or machine where that is less",
    )
    max_body_bytes: int = Field(default=2_000_000, ge=1_000)
    max_body_values: int = Field(
        default=250_000, ge=1_000, description="numbers, strings, nulls, arrays and objects in a body"
    )
    max_json_depth: int = Field(default=32, ge=8)
    max_prompt_tokens: int = Field(default=16_384, ge=1)
    max_new_tokens: int = Field(default=4_096, ge=1)
    max_choices: int = Field(default=128, ge=1, description="continuations that one request may ask for, prompts × n")
    max_attention_tokens: int = Field(default=4_096, ge=2, description='prompt and new tokens, decode="attention"')
    max_observations: int = Field(default=20_000, ge=1)
    max_series: int = Field(default=10_000, ge=1, description="series of one request")
    max_series_bytes: int = Field(
        default_factory=lambda given: 2 * given.get("max_body_bytes", 500),
        ge=1_000,
        description="a body of /filter as JSON, which may hold many series; by default twice max_body_bytes",
    )
    max_series_observations: int = Field(
        default_factory=lambda given: 5 * given.get("max_observations", 1),
        ge=1,
        description="all series of one request together, as JSON; by default five times max_observations",
    )
    max_series_numbers: int = Field(
        default=50_000_000, ge=1_000, description="numbers that the reply to many series may hold"
    )
    max_arrow_bytes: int = Field(
        default_factory=lambda given: 24 * given.get("max_body_bytes", 500),
        ge=1_000,
        description="a body of many series as an Arrow stream; by default 24 times max_body_bytes",
    )
    max_arrow_observations: int = Field(
        default_factory=lambda given: 60 * given.get("max_observations", 1),
        ge=1,
        description="all series of one request together, as an Arrow stream; by default 60 times max_observations",
    )
    series_threads: int = Field(
        default_factory=lambda: min(available_cores(), USEFUL_THREADS),
        ge=1,
        le=256,
        description="threads on which the series of one request are filtered; by default one per core, four at most",
    )
    max_reply_numbers: int = Field(default=2_000_000, ge=1_000, description="numbers that one reply may hold")

    api_keys: SecretStr | None = Field(
        default=None, description="keys that clients must send one of, separated by commas"
    )
    api_keys_file: Path | None = Field(default=None, description="the same, one key a line")
    allowed_hosts: Names = Field(
        default=(),
        description="names that this server answers under, beside localhost and addresses, separated by commas; "
        "by default the one it listens on, with API keys any; * is any",
    )
    allowed_origins: Names = Field(
        default=(), description="origins whose pages may use this server, beside its own, separated by commas"
    )
    trusted_proxies: Annotated[tuple[IPvAnyNetwork, ...], NoDecode] = Field(
        default=(), description="addresses and networks whose X-Forwarded-For tells who asks, separated by commas"
    )
    insecure: bool = Field(default=False, description="listen on a public address without an API key")
    state_keys: SecretStr | None = Field(
        default=None, description="keys that seal states, base64 of 32 bytes, separated by commas: the first seals"
    )
    state_keys_file: Path | None = Field(default=None, description="the same, one key a line")
    state_audience: str = Field(default="rfa", description="part of every seal: deployments differ")
    state_seconds: int = Field(default=86_400, ge=1, description="a state token is good for so long")
    sessions: str = Field(
        default="off", description="where named sessions live: off, memory, or the address of a Redis"
    )
    sessions_password_file: Path | None = Field(
        default=None, description="the password of the Redis of `sessions`, where its URL has none"
    )
    session_seconds: int = Field(default=86_400, ge=1, description="an untouched session is forgotten after so long")
    max_sessions: int = Field(default=262_144, ge=1, description="named sessions in memory")
    max_session_bytes: int = Field(default=1_073_741_824, ge=1_000, description="memory that named sessions may take")
    log_format: Literal["text", "json"] = "text"
    tracing: bool = Field(default=False, description="OpenTelemetry traces, configured by the OTEL_* variables")

    def gpu_of(self, process: int) -> int | None:
        """Which of the GPUs that this server may see a server process computes on; None is the CPU."""
        kind, _, first = self.device.partition(":")
        return int(first or 0) + process if kind == "cuda" else None

    @property
    def is_on_gpu(self) -> bool:
        """Whether language models are computed on one."""
        return self.gpu_of(0) is not None

    @field_validator(*FORMS)
    @classmethod
    def know_forms(cls, value: str, info: ValidationInfo) -> str:
        """Each as it is written."""
        form, words = FORMS[str(info.field_name)]
        if not form.fullmatch(value):
            raise PydanticCustomError("form", words)  # type: ignore[arg-type]
        return value

    @field_validator("bundles", mode="before")
    @classmethod
    def split_paths(cls, value: object) -> object:
        """Read `A:B` the way PATH is read."""
        if isinstance(value, str):
            return tuple(part for part in value.split(os.pathsep) if part)
        return value

    @field_validator("allowed_hosts", "allowed_origins", "trusted_proxies", mode="before")
    @classmethod
    def split_names(cls, value: object) -> object:
        """Read `A, B`."""
        if isinstance(value, str):
            return tuple(name for part in value.split(",") if (name := part.strip()))
        return value


def check_names(environment: Mapping[str, str]) -> None:
    """Refuse variables that look like settings and are none: a limit that is misspelt would not be one.

    Raises:
        ConfigurationError: with the setting that was probably meant; names only, never a value.
    """
    valid = {PREFIX + name.upper() for name in Settings.model_fields} | NOT_SETTINGS
    for name in sorted(environment):
        if name.upper().startswith(PREFIX) and name.upper() not in valid:
            meant = difflib.get_close_matches(name.upper(), sorted(valid), n=1)
            nearest = difflib.get_close_matches(name.upper(), sorted(valid), n=3, cutoff=0)
            hint = f"did you mean {meant[0]}?" if meant else f"the nearest are {', '.join(nearest)}"
            raise ConfigurationError(f"{name} is set in the environment and is no setting of this server; {hint}")


def configured_keys(settings: Settings) -> tuple[bytes, ...]:
    """The state keys of the settings, the sealing one first; empty where none are configured.

    Raises:
        ValueError, OSError: see `read_keys`.
    """
    listed = settings.state_keys
    return read_keys(None if listed is None else listed.get_secret_value(), settings.state_keys_file)

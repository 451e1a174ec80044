"""What an operator may set, from arguments or from `RFA_*` environment variables."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

BUNDLE_ROOT = Path(__file__).resolve().parent.parent / "bundles"


def default_bundles(root: Path = BUNDLE_ROOT) -> tuple[Path, ...]:
    """Every bundle directory under `root`, by name."""
    return tuple(sorted(manifest.parent for manifest in root.glob("*/manifest.json")))


def available_cores() -> int:
    """Cores this process may run on, which in a container is fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


class Settings(BaseSettings):
    """Address, bundles and limits of one server process."""

    model_config = SettingsConfigDict(env_prefix="RFA_", extra="forbid", frozen=True)

    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535, description="0 takes a free port")
    device: Literal["auto", "cpu"] = "auto"
    bundles: Annotated[tuple[Path, ...], NoDecode] = Field(
        default_factory=default_bundles, description="bundle directories; in the environment separated by `:`"
    )
    workers: int = Field(default_factory=available_cores, ge=1, le=256, description="threads that run models")

    max_running: int = Field(default=64, ge=1, description="requests that hold model state at the same time")
    max_waiting: int = Field(default=256, ge=0, description="requests queued beyond that before 429")
    max_batch_rows: int = Field(default=64, ge=1, description="sequences in one decode step")
    stream_buffer: int = Field(default=256, ge=1, description="events that a reader may lag before its request pauses")
    stall_seconds: float = Field(default=30.0, gt=0, description="work without progress for so long is not ready")
    send_timeout_seconds: float = Field(
        default=30.0, gt=0, description="a reader that takes nothing for so long is dropped"
    )
    shutdown_grace_seconds: int = Field(default=10, ge=0, description="time for running requests after a stop signal")

    max_body_bytes: int = Field(default=2_000_000, ge=1_000)
    max_json_depth: int = Field(default=32, ge=8)
    max_prompt_tokens: int = Field(default=16_384, ge=1)
    max_new_tokens: int = Field(default=4_096, ge=1)
    max_attention_tokens: int = Field(default=4_096, ge=2, description='prompt and new tokens, decode="attention"')
    max_observations: int = Field(default=10_000, ge=1)
    max_reply_numbers: int = Field(default=2_000_000, ge=1_000, description="numbers that one reply may hold")

    @field_validator("bundles", mode="before")
    @classmethod
    def split_paths(cls, value: object) -> object:
        """Read `A:B` the way PATH is read."""
        if isinstance(value, str):
            return tuple(part for part in value.split(os.pathsep) if part)
        return value

"""Replicas behind a Ray Serve proxy, each a whole application with its own engine.

    pip install 'rfa-server[ray]'
    serve run rfa.service.deploy_ray:application replicas=4 cores=1

Every replica reads the `RFA_*` environment of its node (set by `runtime_env` of a Serve config). Replicas share no
memory: every one opens all state tokens, and named sessions are in Redis. Ray's proxy replaces `rfa serve`, so settings
of sockets and processes (`RFA_HOST`, `RFA_PROCESSES`, timeouts of headers and idle connections) have no effect. Put a
proxy with such limits in front.
"""

from __future__ import annotations

import os

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field
from ray import serve  # type: ignore[import-not-found]
from ray.serve import Application  # type: ignore[import-not-found]

from rfa.service.app import create_app
from rfa.service.settings import Settings, check_names

# After the grace time: remaining replies, and the exit of Python.
EXIT_SECONDS = 5


class Options(BaseModel):
    """Arguments of `serve run`, or `args` of the application in a Serve config file."""

    model_config = ConfigDict(extra="forbid")

    replicas: int = Field(default=2, ge=1)
    cores: float = Field(default=1.0, gt=0, description="cores that Ray reserves for each replica")


def shared_settings() -> Settings:
    """Return the settings of this node.

    Raises:
        ValueError: A setting is misspelt, or shared keys or sessions are missing.
    """
    check_names(os.environ)
    settings = Settings()
    if not settings.models.bundles:
        raise ValueError("no bundles: set RFA_BUNDLES to their folders")
    if settings.state.state_keys is None and settings.state.state_keys_file is None:
        raise ValueError("replicas need the same keys to open each other's states: set RFA_STATE_KEYS_FILE")
    if settings.state.sessions == "memory":
        raise ValueError("RFA_SESSIONS=memory is one process's memory: use redis://… or off")
    # Ray's proxy has the address. Whether it is public is unknown here.
    if (
        settings.security.api_keys is None
        and settings.security.api_keys_file is None
        and not settings.security.insecure
    ):
        raise ValueError("set RFA_API_KEYS_FILE, or RFA_INSECURE=true to serve whoever reaches the proxy")
    return settings


def build() -> FastAPI:
    """Return the application of one replica. Its lifespan loads the bundles."""
    return create_app(shared_settings())


@serve.ingress(build)
class Replica:
    """One engine."""

    app: FastAPI

    async def check_health(self) -> None:
        """Raise NotReady if the engine has work and makes no progress. Ray then replaces the replica."""
        self.app.state.engine.check_ready()


def application(options: Options) -> Application:
    """Return the application of `serve run`.

    Raises:
        ValueError: See `shared_settings`.
    """
    settings = shared_settings()
    deployment = serve.deployment(
        Replica,
        name="rfa-server",
        num_replicas=options.replicas,
        # The engine queues and rejects requests itself.
        max_ongoing_requests=settings.limits.max_running + settings.limits.max_waiting + settings.limits.max_streams,
        health_check_period_s=10,
        health_check_timeout_s=30,
        graceful_shutdown_timeout_s=settings.server.shutdown_grace_seconds + EXIT_SECONDS,
        ray_actor_options={"num_cpus": options.cores},
    )
    # Ray's types do not allow a deployment with options alone.
    return deployment.bind()  # type: ignore[attr-defined]

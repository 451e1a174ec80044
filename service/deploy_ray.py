"""Run replicas of the server with Ray Serve. Each replica is a complete application with its own engine.

    pip install 'rfa-server[ray]'
    serve run rfa.service.deploy_ray:application replicas=4 cores=1

Every replica reads the `RFA_*` environment variables of its node, which `runtime_env` in a Serve config sets. Replicas
do not share memory. Every replica can open all state tokens, and named sessions are stored in Redis. Ray's proxy
replaces `rfa serve`, so settings for sockets and processes (`RFA_HOST`, `RFA_PROCESSES`, timeouts for headers and idle
connections) have no effect. Put a proxy that enforces such limits in front of Ray's proxy.
"""

from __future__ import annotations

import os

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field
from ray import serve  # type: ignore[import-not-found]
from ray.serve import Application  # type: ignore[import-not-found]

from rfa.service.app import create_app
from rfa.service.settings import Settings, check_names

# Time after the grace period in which remaining replies are sent and Python exits.
EXIT_SECONDS = 5


class Options(BaseModel):
    """Arguments of `serve run`, or `args` of the application in a Serve configuration file."""

    model_config = ConfigDict(extra="forbid")

    replicas: int = Field(default=2, ge=1)
    cores: float = Field(default=1.0, gt=0, description="Number of cores that Ray reserves for each replica.")


def shared_settings() -> Settings:
    """Read the settings of this node, and check that replicas can share states.

    Raises:
        ConfigurationError: If a setting is misspelt or invalid.
        ValueError: If there are no bundles, no keys for state tokens or no API keys, or if sessions are stored in
            memory.
    """
    check_names(os.environ)
    settings = Settings()
    if not settings.models.bundles:
        raise ValueError("no bundles found; set RFA_BUNDLES to the bundle directories")
    if settings.state.state_keys is None and settings.state.state_keys_file is None:
        raise ValueError("replicas must share keys to open each other's state tokens; set RFA_STATE_KEYS_FILE")
    if settings.state.sessions == "memory":
        raise ValueError(
            "RFA_SESSIONS=memory cannot be shared between replicas; set it to the URL of a Redis server, or to off"
        )
    # Ray's proxy listens on the address, and this process cannot find out whether it is public.
    if (
        settings.security.api_keys is None
        and settings.security.api_keys_file is None
        and not settings.security.insecure
    ):
        raise ValueError(
            "no API keys are set; set RFA_API_KEYS_FILE, or RFA_INSECURE=true to serve every client of the proxy"
        )
    return settings


def build() -> FastAPI:
    """Create the application of one replica. The application loads the bundles when it starts."""
    return create_app(shared_settings())


@serve.ingress(build)
class Replica:
    """Replica of Ray Serve with one engine."""

    app: FastAPI

    async def check_health(self) -> None:
        """Check that the engine makes progress. If this raises an error, Ray replaces the replica.

        Raises:
            NotReady: If the engine has work and makes no progress.
        """
        self.app.state.engine.check_ready()


def application(options: Options) -> Application:
    """Create the application for `serve run`.

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
    # Ray's type annotations do not allow a deployment with options alone.
    return deployment.bind()  # type: ignore[attr-defined]

"""Many replicas behind one Ray Serve proxy: each replica is the whole application over an engine of its own.

    pip install 'rfa-server[ray]'
    serve run rfa.service.deploy_ray:application replicas=4 cores=1

Every replica reads the `RFA_*` environment of its node (a Serve config's `runtime_env` sets it on all). No replica
keeps what another one needs: a state token opens on each, and named sessions live in Redis. Ray's proxy takes the place
of `rfa serve`: settings of sockets and processes (`RFA_HOST`, `RFA_PROCESSES`, timeouts of headers and of idle
connections) have no effect, so put a proxy with such limits in front.
"""

from __future__ import annotations

import os

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field
from ray import serve  # type: ignore[import-not-found]
from ray.serve import Application  # type: ignore[import-not-found]

from rfa.service.app import create_app
from rfa.service.settings import Settings, check_names

# Beyond the grace of running requests: replies on their way, and Python's own end.
EXIT_SECONDS = 5


class Options(BaseModel):
    """Arguments of `serve run`, or `args` of the application in a Serve config file."""

    model_config = ConfigDict(extra="forbid")

    replicas: int = Field(default=2, ge=1)
    cores: float = Field(default=1.0, gt=0, description="that Ray sets aside for each replica")


def shared_settings() -> Settings:
    """The settings of this node, if many replicas can serve with them.

    Raises:
        ValueError: a setting is misspelt, or what replicas must share is missing; each would make up its own and refuse
            the others' states.
    """
    check_names(os.environ)
    settings = Settings()
    if not settings.bundles:
        raise ValueError("no bundles: set RFA_BUNDLES to their folders")
    if settings.state_keys is None and settings.state_keys_file is None:
        raise ValueError("replicas need the same keys to open each other's states: set RFA_STATE_KEYS_FILE")
    if settings.sessions == "memory":
        raise ValueError("RFA_SESSIONS=memory is one process's memory: use redis://… or off")
    # The address belongs to Ray's proxy, so that it cannot tell here whether the public can reach it.
    if settings.api_keys is None and settings.api_keys_file is None and not settings.insecure:
        raise ValueError("set RFA_API_KEYS_FILE, or RFA_INSECURE=true to serve whoever reaches the proxy")
    return settings


def build() -> FastAPI:
    """The application of one replica; Ray runs its lifespan, which loads the bundles and checks them."""
    return create_app(shared_settings())


@serve.ingress(build)
class Replica:
    """One engine. Ray replaces it when it has work and makes no progress."""

    app: FastAPI

    async def check_health(self) -> None:
        """Raises NotReady when the engine has work and makes no progress."""
        self.app.state.engine.check_ready()


def application(options: Options) -> Application:
    """What `serve run` deploys.

    Raises:
        ValueError: see `shared_settings`.
    """
    settings = shared_settings()
    deployment = serve.deployment(
        Replica,
        name="rfa-server",
        num_replicas=options.replicas,
        # The engine queues and refuses by itself, with reasons: Ray must not hold requests back before it.
        max_ongoing_requests=settings.max_running + settings.max_waiting + settings.max_streams,
        health_check_period_s=10,
        health_check_timeout_s=30,
        graceful_shutdown_timeout_s=settings.shutdown_grace_seconds + EXIT_SECONDS,
        ray_actor_options={"num_cpus": options.cores},
    )
    # Where Ray is installed its types do not know that a deployment may have options alone.
    return deployment.bind()  # type: ignore[attr-defined]

"""The server process: bundles, one event loop, a clear first line, and an orderly end."""

from __future__ import annotations

import logging
import signal
import socket
from types import FrameType

import uvicorn

from service.access.keys import check_exposure
from service.access.logs import configure_logging
from service.app import create_app
from service.engine.engine import Models, load_models
from service.settings import Settings

logger = logging.getLogger("rfa.server")
# Above the usual idle time of a proxy's pool, so that the proxy closes first and never writes into a closing socket.
KEEP_ALIVE_SECONDS = 75


def serve(settings: Settings) -> None:
    """Serve until SIGINT or SIGTERM.

    Running requests get `shutdown_grace_seconds` to end.

    Raises:
        ConfigurationError: the settings would serve anyone, or their keys are unusable.
        BundleError: a bundle is refused; nothing was served.
        OSError: the address cannot be used.
    """
    check_exposure(settings)
    configure_logging(settings)
    models = load_models(settings)
    listener = _listen(settings.host, settings.port)
    logger.info("%s", startup_line(models, listener, settings))
    config = uvicorn.Config(
        # This server is one process, which needs to share its keys with none.
        create_app(settings.model_copy(update={"processes": 1}), load=lambda _: models),
        loop="uvloop",
        http="httptools",
        lifespan="on",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=settings.shutdown_grace_seconds,
    )
    # After an orderly end uvicorn raises the signal again; that is what was asked for, hence exit code 0.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)
    with listener:
        uvicorn.Server(config).run(sockets=[listener])


def startup_line(models: Models, listener: socket.socket, settings: Settings) -> str:
    """What is served and where."""
    host, port = listener.getsockname()[:2]
    names = ", ".join(f"{facts.name} ({facts.kind})" for facts in models.facts) or "no bundles"
    address = f"[{host}]" if ":" in host else host
    return f"serving {names} on http://{address}:{port} with {settings.workers} workers; try / and /docs there"


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket, bound before the models answer, so that a taken port is known at once."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=2048)

"""ASGI application with its routes, middleware and error handlers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Match
from starlette.types import Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from rfa.service.access.boundary import METHODS, Boundary
from rfa.service.access.guard import Guard
from rfa.service.access.keys import load_keys
from rfa.service.access.middleware import error_response, refuse_early
from rfa.service.access.origin import OriginGuard, OriginPolicy
from rfa.service.access.quotas import Clients, QuotaGuard
from rfa.service.access.tracing import Tracing, open_tracing
from rfa.service.cooperative import CooperativeWork
from rfa.service.engine.engine import Engine
from rfa.service.engine.models import Models, load_models
from rfa.service.errors import NAMED, InvalidRequest, MethodNotAllowed, NotFound, as_service_error
from rfa.service.exposition import Exposition
from rfa.service.memory import open_budget, return_free_memory
from rfa.service.metrics import Metrics
from rfa.service.routes import (
    chat,
    filter,
    filter_stream,
    generate,
    health,
    info,
    merge,
    openai,
    page,
    read,
    score,
    tgi,
    tokenizer,
)
from rfa.service.settings import Settings
from rfa.service.state.keeper import make_keeper
from rfa.service.validation import validation_failure

NO_SUCH_PATH = "This path does not exist; /openapi.json lists all paths."
# FastAPI's telemetry would export invalid bodies and the messages of exceptions.
NO_TELEMETRY: Any = dict.fromkeys(("tracing", "metrics", "logs", "operation_spans", "auto_configure"), False)


def create_app(settings: Settings | None = None, load: Callable[[Settings], Models] = load_models) -> FastAPI:
    """Create the ASGI application.

    Args:
        settings: Settings of the server. By default, they are read from the `RFA_*` environment variables.
        load: Function that loads the models at startup.
    """
    settings = settings or Settings()
    tracing = open_tracing(settings)
    app = FastAPI(
        title="rfa-server",
        version=info.server_version(),
        description="Text generation and state estimation with calibrated confidence (Robust Filter Attention).",
        lifespan=partial(_lifespan, load=load, tracing=tracing),
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        telemetry=NO_TELEMETRY,
    )
    _add_state(app, settings)
    for route in (
        generate,
        tgi,
        openai,
        chat,
        score,
        tokenizer,
        filter,
        filter_stream,
        read,
        merge,
        health,
        info,
        page,
    ):
        app.include_router(route.router)
    app.router.default = _no_such_path
    for kind in NAMED:
        app.add_exception_handler(kind, _handle_named_error)
    app.add_exception_handler(HTTPException, _handle_http_exception)
    app.add_exception_handler(RequestValidationError, _handle_validation_error)
    _add_middleware(app, settings, tracing)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI, load: Callable[[Settings], Models], tracing: Tracing | None) -> AsyncIterator[None]:
    state = app.state
    models = await asyncio.to_thread(load, state.settings)
    state.memory = open_budget(state.settings, state.metrics, models.reserved_bytes(state.settings))
    state.engine = engine = Engine(models, state.settings, state.metrics)
    trimming = asyncio.create_task(return_free_memory())
    if tracing:
        tracing.start()
    try:
        yield
    finally:
        trimming.cancel()
        state.engine = None
        await asyncio.to_thread(engine.close)
        await state.keeper.aclose()
        if tracing:
            await asyncio.to_thread(tracing.stop)


def _add_state(app: FastAPI, settings: Settings) -> None:
    state = app.state
    state.settings = settings
    state.keys = load_keys(settings)
    state.keeper = make_keeper(settings)
    state.metrics = metrics = Metrics()
    state.clients = Clients(settings, state.keys, lambda quota: metrics.quota_refusals.labels(quota).inc())
    state.exposition = Exposition(metrics)
    state.memory = None
    state.cooperative = CooperativeWork(lambda: state.engine is not None and state.engine.has_live_work)
    state.draining = False
    state.engine = None


def _add_middleware(app: FastAPI, settings: Settings, tracing: Tracing | None) -> None:
    """Add the middleware. The first one is the innermost, and the last one the outermost."""
    has_keys = len(app.state.keys) > 0
    if has_keys:
        app.add_middleware(QuotaGuard, clients=app.state.clients)
    app.add_middleware(Guard, keys=app.state.keys)
    app.add_middleware(OriginGuard, policy=OriginPolicy(settings, has_keys=has_keys))
    app.add_middleware(Boundary, metrics=app.state.metrics, tracing=tracing)
    if networks := settings.security.trusted_proxies:
        # The client of a request is the last address in X-Forwarded-For that does not belong to a trusted proxy.
        app.add_middleware(ProxyHeadersMiddleware, trusted_hosts=[str(network) for network in networks])


async def _no_such_path(scope: Scope, receive: Receive, send: Send) -> None:
    """Reject a request for a path without a route. Starlette would reject a WebSocket without an error document."""
    if scope["type"] != "websocket":
        raise HTTPException(404)
    await refuse_early(NotFound(NO_SUCH_PATH), scope, receive, send)


async def _handle_named_error(request: Request, error: Exception) -> Response:
    return error_response(as_service_error(error))


async def _handle_http_exception(request: Request, error: Exception) -> Response:
    """Convert an HTTPException of the router or of FastAPI to an error response."""
    status = getattr(error, "status_code", 500)
    if status == 404:
        return error_response(NotFound(NO_SUCH_PATH))
    if status == 405:
        allow = ", ".join(_methods_of_path(request))
        return error_response(MethodNotAllowed(f"This path supports only {allow}.", allow=allow))
    return error_response(InvalidRequest("The request cannot be parsed."))


def _methods_of_path(request: Request) -> list[str]:
    """Return the methods of all routes with the given path. The router reports only the methods of the first route."""
    routes = request.app.router.routes
    return [
        method
        for method in sorted(METHODS)
        if any(route.matches({**request.scope, "method": method})[0] is Match.FULL for route in routes)
    ]


async def _handle_validation_error(request: Request, error: Exception) -> Response:
    details: list[dict[str, Any]] = list(error.errors()) if isinstance(error, RequestValidationError) else []
    return error_response(validation_failure([{**detail, "loc": detail["loc"][1:]} for detail in details]))

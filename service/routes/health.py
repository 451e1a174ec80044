"""GET and HEAD of /health, /ready and /metrics, for orchestrators, load balancers and Prometheus."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response

from rfa.service.errors import MethodNotAllowed, NotReady
from rfa.service.metrics import CONTENT_TYPE
from rfa.service.routes.common import EngineDep, error_responses, json_response
from rfa.service.schemas.server_replies import Health, Ready

router = APIRouter(tags=["operation"])
Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


def _probe(path: str, **options: Any) -> Callable[[Endpoint], Endpoint]:
    """Return a decorator that adds a route for the methods GET and HEAD. Some load balancers use HEAD."""

    def register(endpoint: Endpoint) -> Endpoint:
        for add in (router.get, router.head):
            add(path, **options)(endpoint)
        return endpoint

    return register


@_probe("/health", response_model=Health, responses=error_responses(MethodNotAllowed))
async def health() -> Response:
    """Report that the process is alive."""
    return json_response(Health("alive"))


@_probe("/ready", response_model=Ready, responses=error_responses(MethodNotAllowed, NotReady))
async def ready(request: Request, engine: EngineDep) -> Response:
    """Report whether the server process that accepted the connection is ready. A process is ready if its bundles are
    loaded and have reproduced their golden outputs, its engine makes progress, and it is not shutting down."""
    if request.app.state.draining:
        raise NotReady("The server is shutting down.")
    engine.check_ready()
    return json_response(Ready("ready", [model.name for model in engine.models.facts]))


_EXPOSITION: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The metrics in the text format of Prometheus.",
        "content": {"text/plain": {"schema": {"type": "string"}}},
    }
}


@_probe("/metrics", response_class=Response, responses={**_EXPOSITION, **error_responses(MethodNotAllowed)})
async def metrics(request: Request) -> Response:
    """Return the Prometheus metrics of all server processes."""
    return Response(await request.app.state.exposition.render(), media_type=CONTENT_TYPE)

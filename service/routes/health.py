"""GET /health, /ready and /metrics: for orchestrators and Prometheus."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from service.errors import MethodNotAllowed, NotReady
from service.metrics import CONTENT_TYPE
from service.routes.common import EngineDep, error_responses, json_response
from service.schemas import Health, Ready

router = APIRouter(tags=["operation"])


@router.get("/health", response_model=Health, responses=error_responses(MethodNotAllowed))
async def health() -> Response:
    """The process is alive."""
    return json_response({"status": "alive"})


@router.get("/ready", response_model=Ready, responses=error_responses(MethodNotAllowed, NotReady))
async def ready(request: Request, engine: EngineDep) -> Response:
    """Bundles are loaded and agreed with their golden outputs, and the engine makes progress.

    The answer is that of the one process that took the connection.
    """
    if request.app.state.draining:
        raise NotReady("The server is shutting down.")
    engine.check_ready()
    return json_response({"status": "ready", "models": [model.name for model in engine.models.facts]})


_EXPOSITION: dict[int | str, dict[str, Any]] = {
    200: {"description": "Prometheus text format.", "content": {"text/plain": {"schema": {"type": "string"}}}}
}


@router.get("/metrics", response_class=Response, responses={**_EXPOSITION, **error_responses(MethodNotAllowed)})
async def metrics(request: Request) -> Response:
    """Prometheus metrics of all processes of the server."""
    return Response(await request.app.state.exposition.render(), media_type=CONTENT_TYPE)

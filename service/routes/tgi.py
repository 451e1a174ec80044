"""POST / and POST /generate_stream. Clients of TGI send requests for /generate to these paths."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from rfa.service.body import StrictJSONRoute
from rfa.service.routes.common import SSE, EngineDep
from rfa.service.routes.generate import MODEL_ERRORS, generate
from rfa.service.schemas.text_replies import GenerateReply
from rfa.service.schemas.text_requests import GenerateRequest

router = APIRouter(route_class=StrictJSONRoute, tags=["language"])

router.add_api_route(
    "/",
    generate,
    methods=["POST"],
    response_model=GenerateReply,
    responses={200: {"model": GenerateReply, "description": "The reply of /generate."}, **MODEL_ERRORS},
    summary="Generate text, as with /generate",
    description=(
        "Generate text that continues a prompt. The request and the reply are those of /generate. "
        "`huggingface_hub.InferenceClient(url).text_generation()` sends requests to this path."
    ),
    operation_id="generate_at_root",
)

_STREAM: dict[int | str, dict[str, Any]] = {
    200: {"description": "The reply to /generate with `stream`.", "content": {SSE: {"schema": {"type": "string"}}}}
}


@router.post("/generate_stream", response_class=Response, responses={**_STREAM, **MODEL_ERRORS})
async def generate_stream(body: GenerateRequest, request: Request, engine: EngineDep) -> Response:
    """Generate text that continues a prompt, and stream the reply. The request is that of /generate; `stream` is
    ignored."""
    return await generate(body.model_copy(update={"stream": True}), request, engine)

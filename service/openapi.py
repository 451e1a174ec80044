"""Build the OpenAPI document. The schemas of streams, API keys and the errors of the middleware are added to the
document that FastAPI builds."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter

from rfa.service.access.guard import is_open
from rfa.service.access.origin import HARMLESS_METHODS
from rfa.service.errors import (
    STATUS,
    ErrorReply,
    Forbidden,
    HeadersTooLarge,
    MalformedRequest,
    MisdirectedRequest,
    Overloaded,
    RequestTimeout,
    RowErrorReply,
    ServiceError,
    Unauthorized,
)
from rfa.service.routes.common import NDJSON, SSE
from rfa.service.schemas.base import Reply
from rfa.service.schemas.chat import ChatChunk
from rfa.service.schemas.filter_replies import FilterDone, FilterStepReply, LateStep
from rfa.service.schemas.many import FilterManyDone, SeriesColumns, SeriesError, SeriesSteps
from rfa.service.schemas.openai import CompletionChunk
from rfa.service.schemas.score import ScoreDone, ScoredPiece
from rfa.service.schemas.text_replies import GenerateEvent

REFERENCE = "#/components/schemas/{model}"
STREAMS: dict[str, tuple[tuple[str, ...], tuple[type[Reply], ...]]] = {
    "/generate": ((SSE,), (GenerateEvent, ErrorReply)),
    "/": ((SSE,), (GenerateEvent, ErrorReply)),
    "/generate_stream": ((SSE,), (GenerateEvent, ErrorReply)),
    "/v1/completions": ((SSE,), (CompletionChunk, ErrorReply)),
    "/v1/chat/completions": ((SSE,), (ChatChunk, ErrorReply)),
    "/score": ((NDJSON, SSE), (ScoredPiece, ScoreDone, ErrorReply)),
    "/filter": (
        (NDJSON, SSE),
        (
            FilterStepReply,
            LateStep,
            FilterDone,
            SeriesSteps,
            SeriesColumns,
            SeriesError,
            FilterManyDone,
            RowErrorReply,
            ErrorReply,
        ),
    ),
}
# Operations with a state in the reply, and the operation that continues from the state.
CONTINUED = {
    "/generate": "/generate",
    "/filter": "/filter",
    "/state/merge": "/filter",
    "/v1/completions": "/v1/completions",
}
# JSON pointer to the state in the reply, if it is not `/state`.
STATE_PLACES = {"/v1/completions": "/choices/0/state", "/score": "/scores/0/state"}
# OpenAI clients use the first header. The second one is for proxies that use Authorization themselves.
KEY_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}


def openapi_of(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document of an application. It is built once and stored in the application."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        lines = {line for _, models in STREAMS.values() for line in models}
        schema_models: list[Any] = [
            (line.__name__, "serialization", TypeAdapter(line))
            for line in sorted(lines, key=lambda line: line.__name__)
        ]
        _, definitions = TypeAdapter.json_schemas(schema_models, ref_template=REFERENCE)
        for name, schema in definitions["$defs"].items():
            document["components"]["schemas"].setdefault(name, schema)
        for path, (media_types, models) in STREAMS.items():
            line = {"anyOf": [{"$ref": REFERENCE.format(model=model.__name__)} for model in models]}
            content = document["paths"][path]["post"]["responses"]["200"]["content"]
            content.update({media_type: {"itemSchema": _item(media_type, line)} for media_type in media_types})
        for path, following in CONTINUED.items():
            place = STATE_PLACES.get(path, "/state")
            _add_link(document["paths"][path]["post"], document["paths"][following]["post"], place)
        _add_refusals(document, has_keys=len(app.state.keys) > 0)
        app.openapi_schema = document
    return app.openapi_schema


def _add_link(operation: dict[str, Any], following: dict[str, Any], place: str) -> None:
    """Add an OpenAPI link from the field `state` of a reply to the operation that continues from the state."""
    operation["responses"]["200"]["links"] = {
        "continue": {
            "operationId": following["operationId"],
            "requestBody": {"state": f"$response.body#{place}"},
            "description": "Continue from the state in a reply to a request with `return_state`.",
        }
    }


def _item(media_type: str, line: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of one item of a stream (OpenAPI 3.2). For server-sent events, `line` is the schema of the
    data, which is JSON text."""
    if media_type != SSE:
        return line
    data = {"type": "string", "contentMediaType": "application/json", "contentSchema": line}
    return {"type": "object", "properties": {"data": data}, "required": ["data"]}


def _add_refusals(document: dict[str, Any], *, has_keys: bool) -> None:
    """Add the errors of the HTTP server and of the middleware to the responses of all operations."""
    if has_keys:
        document["components"]["securitySchemes"] = KEY_SCHEMES
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            for kind in (MalformedRequest, RequestTimeout, MisdirectedRequest, HeadersTooLarge):
                _add_response(operation, kind)
            if method.upper() not in HARMLESS_METHODS:
                _add_response(operation, Forbidden)
            if has_keys and not is_open(method.upper(), path):
                operation["security"] = [{name: []} for name in KEY_SCHEMES]
                _add_response(operation, Unauthorized)
                _add_response(operation, Overloaded)


def _add_response(operation: dict[str, Any], kind: type[ServiceError]) -> None:
    responses = operation["responses"]
    schema = {"$ref": REFERENCE.format(model=ErrorReply.__name__)}
    content = {"application/json": {"schema": schema}}
    responses[str(STATUS[kind])] = {"description": (kind.__doc__ or "").strip(), "content": content}
    operation["responses"] = dict(sorted(responses.items()))

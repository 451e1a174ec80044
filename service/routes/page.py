"""GET /, /docs and /openapi.json: the interface to try and to read, without outside resources, so also offline."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from fastapi import APIRouter, Request, Response

from rfa.service.errors import MethodNotAllowed
from rfa.service.openapi import openapi_of
from rfa.service.routes.common import error_responses, json_response

router = APIRouter(tags=["pages"])

POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_PAGE: dict[int | str, dict[str, Any]] = {
    200: {"description": "HTML.", "content": {"text/html": {"schema": {"type": "string"}}}}
}
PAGE_RESPONSES = {**_PAGE, **error_responses(MethodNotAllowed)}


def _page(name: str) -> Response:
    html = files("rfa.service").joinpath("pages", name).read_text(encoding="utf-8")
    headers = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff"}
    return Response(html, media_type="text/html", headers=headers)


@router.get("/", response_class=Response, responses=PAGE_RESPONSES)
async def try_page() -> Response:
    """A page to try /generate and /filter, streaming."""
    return _page("try.html")


@router.get("/docs", response_class=Response, responses=PAGE_RESPONSES)
async def docs_page() -> Response:
    """The OpenAPI document for people."""
    return _page("docs.html")


_DOCUMENT: dict[int | str, dict[str, Any]] = {
    200: {"description": "OpenAPI 3.", "content": {"application/json": {"schema": {"type": "object"}}}}
}


@router.get("/openapi.json", response_class=Response, responses={**_DOCUMENT, **error_responses(MethodNotAllowed)})
async def openapi_document(request: Request) -> Response:
    """The OpenAPI document for programs."""
    return json_response(openapi_of(request.app))

"""GET /, /docs and /openapi.json: the interface to try and to read, without outside resources, so also offline.

What the pages load stands under /page/, beside them: their addresses are relative, so that they hold behind a proxy's
prefix. A browser asks anew each time, and is told that nothing changed.
"""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter, Request, Response

from rfa.service.assets import assets
from rfa.service.errors import MethodNotAllowed, NotFound
from rfa.service.openapi import openapi_of
from rfa.service.routes.common import error_responses, json_response

router = APIRouter(tags=["pages"])

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_PAGE: dict[int | str, dict[str, Any]] = {
    200: {"description": "HTML.", "content": {"text/html": {"schema": {"type": "string"}}}}
}
PAGE_RESPONSES = {**_PAGE, **error_responses(MethodNotAllowed)}


def _asset(name: str, request: Request) -> Response:
    """A file of the page, compressed where the browser reads that; nothing where it has this very one."""
    asset = assets()[name]
    headers = {
        "Cache-Control": "no-cache",
        "Content-Security-Policy": POLICY,
        "ETag": asset.tag,
        "Referrer-Policy": "no-referrer",
        "Vary": "Accept-Encoding",
    }
    if request.headers.get("if-none-match") == asset.tag:
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(asset.packed, headers={**headers, "Content-Encoding": "gzip"}, media_type=asset.media_type)
    return Response(asset.plain, headers=headers, media_type=asset.media_type)


@router.get("/", response_class=Response, responses=PAGE_RESPONSES)
async def main_page(request: Request) -> Response:
    """A page that shows series, live streams, texts and the server itself."""
    return _asset("index.html", request)


@router.get("/docs", response_class=Response, responses=PAGE_RESPONSES)
async def docs_page(request: Request) -> Response:
    """The OpenAPI document for people."""
    return _asset("docs.html", request)


@router.get("/page/{name:path}", include_in_schema=False)
async def page_file(name: str, request: Request) -> Response:
    """A script, style sheet or picture of the pages."""
    if name not in assets():
        raise NotFound("The page has no such file.")
    return _asset(name, request)


_DOCUMENT: dict[int | str, dict[str, Any]] = {
    200: {"description": "OpenAPI 3.", "content": {"application/json": {"schema": {"type": "object"}}}}
}


@router.get("/openapi.json", response_class=Response, responses={**_DOCUMENT, **error_responses(MethodNotAllowed)})
async def openapi_document(request: Request) -> Response:
    """The OpenAPI document for programs."""
    return json_response(openapi_of(request.app))

"""GET /, /docs and /openapi.json. The pages load nothing from other hosts, so they work offline.

Their files are served below /page/ and have relative addresses, for proxies that add a prefix. Browsers revalidate them
by ETag.
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
    """Return a file of the pages, compressed if the browser accepts it. Return status 304 if the browser has the
    current version."""
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
    """Return a page to try series, live streams and texts, and to monitor the server."""
    return _asset("index.html", request)


@router.get("/docs", response_class=Response, responses=PAGE_RESPONSES)
async def docs_page(request: Request) -> Response:
    """Return the OpenAPI document as a page."""
    return _asset("docs.html", request)


@router.get("/page/{name:path}", include_in_schema=False)
async def page_file(name: str, request: Request) -> Response:
    """Return a script, style sheet or image of the pages."""
    if name not in assets():
        raise NotFound("There is no such file under /page/.")
    return _asset(name, request)


_DOCUMENT: dict[int | str, dict[str, Any]] = {
    200: {"description": "OpenAPI 3.", "content": {"application/json": {"schema": {"type": "object"}}}}
}


@router.get("/openapi.json", response_class=Response, responses={**_DOCUMENT, **error_responses(MethodNotAllowed)})
async def openapi_document(request: Request) -> Response:
    """Return the OpenAPI document."""
    return json_response(openapi_of(request.app))

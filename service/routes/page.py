"""GET /, /docs and /openapi.json. The pages load no files from other hosts, so they work offline.

The paths of their files start with /page/. The pages use relative addresses, so that they work behind a proxy that adds
a prefix. Browsers cache the files, and revalidate them with their ETag.
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
    200: {"description": "The page as HTML.", "content": {"text/html": {"schema": {"type": "string"}}}}
}
PAGE_RESPONSES = {**_PAGE, **error_responses(MethodNotAllowed)}


def _asset(name: str, request: Request) -> Response:
    """Return a file of the pages. It is compressed if the browser supports this. If the browser has the current
    version, the status is 304."""
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
    """Return the web page, on which users can filter series and live streams, generate text, and monitor the server."""
    return _asset("index.html", request)


@router.get("/docs", response_class=Response, responses=PAGE_RESPONSES)
async def docs_page(request: Request) -> Response:
    """Return a web page that shows the OpenAPI document."""
    return _asset("docs.html", request)


@router.get("/page/{name:path}", include_in_schema=False)
async def page_file(name: str, request: Request) -> Response:
    """Return a script, style sheet or image of the pages."""
    if name not in assets():
        raise NotFound("There is no such file under /page/.")
    return _asset(name, request)


_DOCUMENT: dict[int | str, dict[str, Any]] = {
    200: {"description": "The OpenAPI document.", "content": {"application/json": {"schema": {"type": "object"}}}}
}


@router.get("/openapi.json", response_class=Response, responses={**_DOCUMENT, **error_responses(MethodNotAllowed)})
async def openapi_document(request: Request) -> Response:
    """Return the OpenAPI document that describes this API."""
    return json_response(openapi_of(request.app))

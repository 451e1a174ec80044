"""POST /read, which returns the series in a file. The file is read like the input of `rfa filter`."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request, Response

from rfa.service.body import BodyReader, StrictJSONRoute, hold, require_bare, require_uncompressed
from rfa.service.disconnect import unless_disconnected
from rfa.service.errors import (
    InvalidRequest,
    MethodNotAllowed,
    NotReady,
    Overloaded,
    PayloadTooLarge,
    UnsupportedMediaType,
)
from rfa.service.memory import lease_of
from rfa.service.reading.subprocess_reader import BASE_BYTES, FILE_BYTES, read_in_subprocess
from rfa.service.routes.common import EngineDep, error_responses
from rfa.service.schemas.files import ReadReply, ReadRequest
from rfa.service.setting_groups import LimitSettings

# FastAPI does not read the body of this route; `read_file` does.
router = APIRouter(route_class=StrictJSONRoute)
FILE: Final = {"schema": {"type": "string", "format": "binary"}}
BODY: Final = {
    "required": True,
    "description": (
        "The content of the file: CSV with any separator, JSON, Excel, Parquet, Arrow, ORC or SQLite. The file may be "
        "compressed. The format is detected from the content, not from the Content-Type header."
    ),
    "content": dict.fromkeys(("application/octet-stream", "text/csv", "application/vnd.apache.parquet"), FILE),
}
READ_ERRORS: Final = error_responses(
    InvalidRequest, MethodNotAllowed, NotReady, Overloaded, PayloadTooLarge, UnsupportedMediaType
)


@router.post(
    "/read",
    response_model=ReadReply,
    responses={200: {"model": ReadReply, "description": "The series in the file."}, **READ_ERRORS},
    tags=["filter"],
    openapi_extra={"requestBody": BODY},
)
async def read_file(options: Annotated[ReadRequest, Query()], request: Request, engine: EngineDep) -> Response:
    """Read the series in a file. The reply contains `times` and `values`, which are fields of /filter, and notes on how
    the file was read."""
    require_uncompressed(request.headers.get("content-encoding"))
    require_bare(request.headers.get("content-type"))
    settings: LimitSettings = request.app.state.settings.limits
    lease = lease_of(request)
    content = await BodyReader.of(request).read_bytes(settings.max_body_bytes)
    hold(lease, BASE_BYTES + FILE_BYTES)
    reading: dict[str, Any] = {**options.model_dump(), "most_numbers": settings.max_body_values}
    document = await unless_disconnected(request, read_in_subprocess(content, reading))
    lease.shrink(BASE_BYTES + FILE_BYTES - len(document))
    return Response(document, media_type="application/json")

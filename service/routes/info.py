"""GET /info, which describes the server, its models and its limits."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

from fastapi import APIRouter, Request, Response

from rfa.service.errors import MethodNotAllowed, NotReady
from rfa.service.routes.common import EngineDep, error_responses, json_response
from rfa.service.schemas.server_replies import Info
from rfa.service.settings import Settings

router = APIRouter(tags=["operation"])
LIBRARIES = ("fastapi", "numpy", "onnxruntime", "tokenizers", "uvicorn")
LIMITS = (
    "max_running", "max_waiting", "max_batch_rows", "max_body_bytes", "max_body_values", "max_json_depth",
    "max_prompt_tokens", "max_new_tokens", "max_choices", "max_attention_tokens", "max_observations",
    "max_reply_numbers", "max_series", "max_series_bytes", "max_series_observations", "max_series_numbers",
    "max_arrow_bytes", "max_arrow_observations", "workers",
)  # fmt: skip


def server_version() -> str:
    """Return the version of the installed package. Return "0" if the package is not installed."""
    try:
        return version("rfa-server")
    except PackageNotFoundError:
        return "0"


@router.get("/info", response_model=Info, responses=error_responses(MethodNotAllowed, NotReady))
async def info(request: Request, engine: EngineDep) -> Response:
    """Describe the server: its models with their calibration, the versions of libraries, the device, and the limits."""
    settings: Settings = request.app.state.settings
    is_on_gpu = settings.models.is_on_gpu
    libraries = (*LIBRARIES, "torch") if is_on_gpu else LIBRARIES
    return json_response(
        Info(
            name="rfa-server",
            version=server_version(),
            bundle_version=engine.models.version,
            device="cuda" if is_on_gpu else "cpu",
            versions={"python": platform.python_version(), **{name: version(name) for name in libraries}},
            models=engine.models.facts,
            limits={
                name: getattr(settings.limits if hasattr(settings.limits, name) else settings.models, name)
                for name in LIMITS
            },
        )
    )

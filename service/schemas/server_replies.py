"""Replies of /health, /ready and /info."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from rfa.runtime import outputs
from rfa.runtime.choices import Mode
from rfa.service.schemas.base import Reply, says
from rfa.service.schemas.reply_types import Json, Many, RequestName, ServerName, SupportedPasses

Kind = Literal["lm", "filter", "series"]


@dataclass
class Health(Reply):
    """Reply of a process that is alive."""

    status: Annotated[Literal["alive"], says("Status of the process, which is always `alive`.")]


@dataclass
class Ready(Reply):
    """Reply of a process that is ready. Its bundles are loaded and have reproduced their golden outputs, and its engine
    makes progress."""

    status: Annotated[Literal["ready"], says("Status of the process, which is always `ready`.")]
    models: Annotated[list[str], says("Names of the served models.")]


@dataclass(frozen=True)
class GpuKernels(Reply):
    """Origin of the GPU kernels of a language model."""

    stored: Annotated[tuple[str, ...], says("Names of the kernels that were loaded from the bundle.")]
    compiled: Annotated[tuple[str, ...], says("Names of the kernels that Triton compiled on this machine.")]
    reason: Annotated[
        str | None,
        says(
            "Reason why the kernels in the bundle were not used, such as another GPU or driver; null if there is none."
        ),
    ]


@dataclass(frozen=True)
class LongSeries(Reply):
    """Device for the long series of a filter, on a server with a GPU. Other series are filtered on the CPU."""

    device: Annotated[str, says("Device for long series: `cuda` or `cpu`.")]
    tokens: Annotated[
        int | None,
        says("Minimum size (rows × columns) of the part of a series that is filtered on the GPU; null on a CPU."),
    ]
    reason: Annotated[
        str | None, says("Reason why long series are filtered on the CPU; null if they are filtered on a GPU.")
    ]


@dataclass(frozen=True)
class ModelInfo(Reply):
    """Description of a model."""

    name: RequestName
    kind: Annotated[
        Kind,
        says(
            "Kind of the model. `lm` generates text, `filter` estimates states, and `series` estimates the states of "
            "series with any number of columns."
        ),
    ]
    digest: Annotated[str, says("SHA-256 hash of the manifest of the bundle, or digest of a built-in model.")]
    golden_values: Annotated[int, says("Number of golden outputs that the bundle reproduced when it was loaded.")]
    runtime: Annotated[str, says("Runtime of the model: onnx, compiled or torch.")]
    modes: Annotated[tuple[Mode, ...], says("Supported values of `decode` or `mode`; the last one is the default.")]
    config: Annotated[Mapping[str, Any], says("Configuration of the model.")]
    metrics: Annotated[Mapping[str, Any], says("Metrics on held-out data, measured when the bundle was exported.")]
    calibration: Annotated[Mapping[str, Any], says("Calibration: its method, its constants and the data.")]
    ece_rows: Annotated[
        int,
        says("Number of tokens on which the calibration error was measured; 0 if it was not measured."),
    ] = 0
    kernels: Annotated[
        Annotated[outputs.GpuKernels | None, Json(GpuKernels | None)],
        says("Origin of the kernels of a language model on a GPU; null on a CPU."),
    ] = None
    long_series: Annotated[
        Annotated[outputs.LongSeries | None, Json(LongSeries | None)],
        says("Device for long series of a filter; null for language models, and on a server without a GPU."),
    ] = None
    chat_template: Annotated[
        str | None,
        says(
            "Template that converts a dialogue to the prompt of a language model; null for filters. The models are not "
            "trained on dialogues."
        ),
    ] = None
    passes: SupportedPasses = (1, 1)


@dataclass
class Info(Reply):
    """Description of the server, its models and its limits."""

    name: ServerName
    version: Annotated[str, says("Version of the server software.")]
    bundle_version: Annotated[
        str, says("Version of the set of served bundles. All processes have the same version, and a reload changes it.")
    ]
    device: Annotated[str, says("Device for language models. For filters, see `long_series` of each model.")]
    versions: Annotated[dict[str, str], says("Versions of Python and of libraries, by name.")]
    models: Annotated[Many[ModelInfo], says("Models that the server serves.")]
    limits: Annotated[dict[str, int | float], says("Limits on requests, by the names of the settings.")]

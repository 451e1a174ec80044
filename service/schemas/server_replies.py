"""Replies of /health, /ready and /info."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from rfa.runtime import outputs
from rfa.runtime.choices import Mode
from rfa.service.schemas.base import Reply, says
from rfa.service.schemas.reply_types import Json, Many

Kind = Literal["lm", "filter", "series"]


@dataclass
class Health(Reply):
    """Reply of a process that is alive."""

    status: Annotated[Literal["alive"], says("constant")]


@dataclass
class Ready(Reply):
    """Reply of a server that is ready: the bundles are loaded, they have reproduced their golden outputs, and the
    engine makes progress."""

    status: Annotated[Literal["ready"], says("constant")]
    models: Annotated[list[str], says("names of the served models")]


@dataclass(frozen=True)
class GpuKernels(Reply):
    """Origin of the GPU kernels that a language model used while it was loaded."""

    stored: Annotated[tuple[str, ...], says("kernels that were compiled at export and loaded from the bundle")]
    compiled: Annotated[tuple[str, ...], says("kernels that Triton compiled on this machine")]
    reason: Annotated[
        str | None, says("why the compiled kernels of the bundle were not used, such as another GPU or driver")
    ]


@dataclass(frozen=True)
class LongSeries(Reply):
    """Device for long parts of a series, on a server with a GPU. Everything else is computed on the CPU."""

    device: Annotated[str, says("`cuda` or `cpu`")]
    tokens: Annotated[
        int | None,
        says("smallest size of a part of a series that is processed on the GPU, as rows × columns; null on a CPU"),
    ]
    reason: Annotated[str | None, says("why long series are processed on the CPU; null if they are processed on a GPU")]


@dataclass(frozen=True)
class ModelInfo(Reply):
    """Description of a served bundle."""

    name: Annotated[str, says("name of the model in requests")]
    kind: Annotated[
        Kind,
        says(
            "`lm` generates text, `filter` estimates states, and `series` estimates the states of any number of columns"
        ),
    ]
    digest: Annotated[str, says("sha256 of the bundle's manifest")]
    golden_values: Annotated[int, says("number of stored output values that the bundle reproduced when it was loaded")]
    runtime: Annotated[str, says("runtime of the model: onnx, compiled or torch")]
    modes: Annotated[tuple[Mode, ...], says("supported values of `decode` or `mode`; the last one is the default")]
    config: Annotated[Mapping[str, Any], says("configuration of the model")]
    metrics: Annotated[Mapping[str, Any], says("metrics on held-out data, measured when the bundle was exported")]
    calibration: Annotated[Mapping[str, Any], says("method of the calibration, and the data it used")]
    ece_rows: Annotated[
        int,
        says("number of tokens on which the stated calibration error was measured; 0 means that it was not measured"),
    ] = 0
    kernels: Annotated[
        Annotated[outputs.GpuKernels | None, Json(GpuKernels | None)],
        says("kernels that the model uses on a GPU; null on a CPU"),
    ] = None
    long_series: Annotated[
        Annotated[outputs.LongSeries | None, Json(LongSeries | None)],
        says("device for long series; null for language models, and on a server without a GPU"),
    ] = None
    chat_template: Annotated[
        str | None,
        says(
            "template that converts a dialogue into the text that a language model reads; a base model was not "
            "trained on dialogues"
        ),
    ] = None
    passes: Annotated[
        tuple[int, int], says("smallest and largest supported value of `passes`; the default is the largest")
    ] = (1, 1)


@dataclass
class Info(Reply):
    """Description of the server, its models and its limits."""

    name: Annotated[str, says("name of the server software")]
    version: Annotated[str, says("its version")]
    bundle_version: Annotated[
        str, says("id of the set of served bundles. It is equal in every process and changes with each reload")
    ]
    device: Annotated[str, says("device for language models; for filters, see `long_series` of each model")]
    versions: Annotated[dict[str, str], says("versions of the server's dependencies, by name")]
    models: Annotated[Many[ModelInfo], says("served models")]
    limits: Annotated[dict[str, int | float], says("limits of a request, by the names of their settings")]

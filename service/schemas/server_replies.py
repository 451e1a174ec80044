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
    """Reply of a live process."""

    status: Annotated[Literal["alive"], says("constant")]


@dataclass
class Ready(Reply):
    """Reply of a ready server: the bundles are loaded, they have reproduced their golden outputs, and the engine makes
    progress.
    """

    status: Annotated[Literal["ready"], says("constant")]
    models: Annotated[list[str], says("names of the served models")]


@dataclass(frozen=True)
class GpuKernels(Reply):
    """Origin of the GPU kernels that a language model launched while it was loaded."""

    stored: Annotated[tuple[str, ...], says("kernels that were compiled at export and loaded from the bundle")]
    compiled: Annotated[tuple[str, ...], says("kernels that Triton compiled on this machine")]
    reason: Annotated[str | None, says("why the kernels of the bundle were not used, such as another GPU or driver")]


@dataclass(frozen=True)
class LongSeries(Reply):
    """Device that computes long pieces of a series, on a server with a GPU. The CPU computes everything else."""

    device: Annotated[str, says("`cuda` or `cpu`")]
    tokens: Annotated[
        int | None, says("smallest number of rows × columns of a piece that runs on the GPU; null on a CPU")
    ]
    reason: Annotated[str | None, says("why long series run on the CPU; null on a GPU")]


@dataclass(frozen=True)
class ModelInfo(Reply):
    """A served bundle."""

    name: Annotated[str, says("name of the model in requests")]
    kind: Annotated[
        Kind,
        says(
            "`lm` generates text, `filter` estimates states, and `series` estimates the states of any number of columns"
        ),
    ]
    digest: Annotated[str, says("sha256 of the bundle's manifest")]
    golden_values: Annotated[int, says("number of golden output values that the bundle reproduced when it was loaded")]
    runtime: Annotated[str, says("runtime of the model: onnx, compiled or torch")]
    modes: Annotated[tuple[Mode, ...], says("supported values of `decode` or `mode`, the default last")]
    config: Annotated[Mapping[str, Any], says("configuration of the model")]
    metrics: Annotated[Mapping[str, Any], says("metrics on held-out data, measured at export")]
    calibration: Annotated[Mapping[str, Any], says("method and data of the calibration")]
    ece_rows: Annotated[int, says("tokens with which the stated calibration error was checked; 0: not checked")] = 0
    kernels: Annotated[
        Annotated[outputs.GpuKernels | None, Json(GpuKernels | None)], says("kernels on a GPU; null on a CPU")
    ] = None
    long_series: Annotated[
        Annotated[outputs.LongSeries | None, Json(LongSeries | None)],
        says("device of long series; null for language models, and on a server without a GPU"),
    ] = None
    chat_template: Annotated[
        str | None, says("what a language model reads for a dialogue; a base model, not trained on dialogues")
    ] = None


@dataclass
class Info(Reply):
    """The server, its models and its limits."""

    name: Annotated[str, says("name of this software")]
    version: Annotated[str, says("its version")]
    bundle_version: Annotated[str, says("id of all bundles, equal in every process; a reload changes it")]
    device: Annotated[str, says("device of language models; for filters see `long_series` of a model")]
    versions: Annotated[dict[str, str], says("versions of its dependencies by name")]
    models: Annotated[Many[ModelInfo], says("served models")]
    limits: Annotated[dict[str, int | float], says("limits of a request by the names of their settings")]

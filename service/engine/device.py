"""Where the models of a server run, by its settings: on its CPUs, or on a GPU.

Language models go to the GPU whole, and of filters the network of a series, for long pieces of it. All other filters
stay on the CPU: their steps are matrices of a few numbers, one after the other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from rfa.runtime.bundle.bundle import Bundle
from rfa.runtime.gpu.device import gpu_refusal
from rfa.runtime.outputs import LongSeries
from rfa.runtime.text.language import Language
from rfa.runtime.text.loading import load_on_cpu
from rfa.service.schemas.text_requests import MAX_SAMPLES
from rfa.service.settings import ConfigurationError, Settings
from rfa.service.vetting.trust import trusted_keys

if TYPE_CHECKING:
    from rfa.runtime.series.device import SeriesDevice

logger = logging.getLogger("rfa.engine")
LoadLanguage = Callable[[Bundle], Language]
# Why steps of a filter, by its family, stay on the CPU.
FEW_NUMBERS = "a row is a few thousand operations that wait for those of the row before"


def language_loader(settings: Settings) -> LoadLanguage:
    """How language bundles are loaded for these settings.

    Raises:
        ConfigurationError: the device is not there, with what to do about it. The loader raises UnsupportedError when
            the memory of the device is too small, or a bundle cannot run on the runtime that was asked for.
    """
    streams = settings.max_running * MAX_SAMPLES
    if not settings.is_on_gpu:
        pool_slots = streams + bool(settings.drift_every)  # one is of a text that is read again
        return lambda bundle: load_on_cpu(bundle, settings.text_runtime, pool_slots, settings.max_batch_rows)
    if settings.text_runtime != "auto":
        raise ConfigurationError(
            f"RFA_TEXT_RUNTIME={settings.text_runtime} is a runtime of the CPU, and RFA_DEVICE={settings.device} asks "
            "for the GPU: leave one of them out"
        )
    check_gpu(settings)
    from rfa.runtime.gpu.golden import check_golden_on
    from rfa.runtime.gpu.kernels import kernels_of
    from rfa.runtime.gpu.language import TorchLanguageRuntime

    is_trusted = bool(trusted_keys(settings))  # then every bundle that was opened is signed

    def load(bundle: Bundle) -> Language:
        with kernels_of(bundle, is_trusted=is_trusted) as use:
            runtime = TorchLanguageRuntime(
                bundle, device="cuda", streams=streams, max_rows=settings.max_batch_rows,
                attention_tokens=settings.max_running * settings.max_attention_tokens,
                longest_attention=settings.max_attention_tokens,
            )  # fmt: skip
            runtime.golden_values = check_golden_on(runtime, bundle)
        runtime.kernels = use.report()
        return runtime

    return load


def long_series_of(settings: Settings, bundle: Bundle) -> tuple[SeriesDevice | None, LongSeries | None]:
    """Where a filter computes long pieces of a series, and what is told of it: nothing on a server without a GPU.

    Raises:
        UnsupportedError: the memory of the GPU is too small.
    """
    if not settings.is_on_gpu:
        return None, None
    reason: str | None = FEW_NUMBERS
    if bundle.kind == "series":
        from rfa.runtime.gpu.filter import TorchSeries, refusal

        reason = refusal(bundle, "cuda")
        if reason is None:
            device = TorchSeries(bundle, "cuda")
            return device, LongSeries("cuda", device.least_tokens, None)
    logger.info("bundle %r computes on the CPU, long series too: %s", bundle.name, reason)
    return None, LongSeries("cpu", None, reason)


def check_gpu(settings: Settings) -> None:
    """Find out whether torch can use the GPU that this process was given.

    Raises:
        ConfigurationError: it cannot.
    """
    reason = gpu_refusal()
    if reason is not None:
        processes = f" with RFA_PROCESSES={settings.processes}" if settings.processes > 1 else ""
        raise ConfigurationError(
            f"RFA_DEVICE={settings.device}{processes} needs {reason}, or serve with RFA_DEVICE=cpu"
        )

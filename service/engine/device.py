"""Select the device of each model: the CPU, or a GPU for language models and for long series of the series network.

Other filters run on the CPU, because their steps are small matrix operations that depend on each other.
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
from rfa.service.bundle_checks.trusted_keys import trusted_keys
from rfa.service.schemas.text_requests import MAX_SAMPLES
from rfa.service.settings import ConfigurationError, Settings

if TYPE_CHECKING:
    from rfa.runtime.series.device import SeriesDevice

logger = logging.getLogger("rfa.engine")
LoadLanguage = Callable[[Bundle], Language]
# Reason in /info why other filters run on the CPU.
FEW_NUMBERS = "the model computes each row with a few thousand sequential operations, which are slow on a GPU"


def language_loader(settings: Settings) -> LoadLanguage:
    """Return the function that loads language bundles according to the settings.

    The function raises UnsupportedError if the device does not have enough memory, or if the runtime does not support a
    bundle.

    Raises:
        ConfigurationError: If the device is missing, or the settings of the device and the runtime contradict
            each other.
    """
    streams = settings.limits.max_running * MAX_SAMPLES
    if not settings.models.is_on_gpu:
        pool_slots = streams + bool(settings.models.drift_every)  # one slot for the comparison of the modes
        return lambda bundle: load_on_cpu(
            bundle, settings.models.text_runtime, pool_slots, settings.models.max_batch_rows
        )
    if settings.models.text_runtime != "auto":
        raise ConfigurationError(
            f"RFA_TEXT_RUNTIME={settings.models.text_runtime} runs on the CPU, but "
            f"RFA_DEVICE={settings.models.device} requests the GPU; unset one of them"
        )
    check_gpu(settings)
    from rfa.runtime.gpu.golden import check_golden_on
    from rfa.runtime.gpu.kernels import kernels_of
    from rfa.runtime.gpu.language import TorchLanguageRuntime

    is_trusted = bool(trusted_keys(settings.security))  # every opened bundle is then signed

    def load(bundle: Bundle) -> Language:
        with kernels_of(bundle, is_trusted=is_trusted) as use:
            runtime = TorchLanguageRuntime(
                bundle, device="cuda", streams=streams, max_rows=settings.models.max_batch_rows,
                attention_tokens=settings.limits.max_running * settings.limits.max_attention_tokens,
                longest_attention=settings.limits.max_attention_tokens,
            )  # fmt: skip
            runtime.golden_values = check_golden_on(runtime, bundle)
        runtime.kernels = use.report()
        return runtime

    return load


def long_series_of(settings: Settings, bundle: Bundle) -> tuple[SeriesDevice | None, LongSeries | None]:
    """Return the device for the long series of a filter, and its description for /info. Without a GPU, both are None.
    If this filter does not use the GPU, only the device is None.

    Raises:
        UnsupportedError: If the GPU does not have enough memory.
    """
    if not settings.models.is_on_gpu:
        return None, None
    reason: str | None = FEW_NUMBERS
    if bundle.kind == "series":
        from rfa.runtime.gpu.filter import TorchSeries, refusal

        reason = refusal(bundle, "cuda")
        if reason is None:
            device = TorchSeries(bundle, "cuda")
            return device, LongSeries("cuda", device.least_tokens, None)
    logger.info("bundle %r filters long series on the CPU: %s", bundle.name, reason)
    return None, LongSeries("cpu", None, reason)


def check_gpu(settings: Settings) -> None:
    """Check that torch can use the GPU of this process.

    Raises:
        ConfigurationError: If torch cannot use the GPU.
    """
    reason = gpu_refusal()
    if reason is not None:
        processes = f" with RFA_PROCESSES={settings.models.processes}" if settings.models.processes > 1 else ""
        raise ConfigurationError(
            f"RFA_DEVICE={settings.models.device}{processes} requires {reason}; RFA_DEVICE=cpu serves without a GPU"
        )

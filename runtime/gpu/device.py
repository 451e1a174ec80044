"""What computes a server's models: compiled code or ONNX Runtime on a CPU, torch on a GPU.

Language models go to the GPU whole, and of filters the network of a series, for long pieces of it. All other filters
stay on the CPU: their steps are matrices of a few numbers, one after the other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from rfa.runtime.bundle.bundle import Bundle
from rfa.runtime.text.language import Language, LanguageRuntime
from rfa.service.schemas.replies import LongSeries
from rfa.service.schemas.requests import MAX_SAMPLES
from rfa.service.settings import ConfigurationError, Settings, TextRuntime
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
        ConfigurationError: the device is not there, with what to do about it. The loader raises it as well, when the
            memory of the device is too small, or a runtime was asked for that a bundle cannot run on.
    """
    streams = settings.max_running * MAX_SAMPLES
    if not settings.is_on_gpu:
        seats = streams + bool(settings.drift_every)  # one is of a text that is read again
        return lambda bundle: load_on_cpu(bundle, settings.text_runtime, seats, settings.max_batch_rows)
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
            check_golden_on(runtime, bundle)
        runtime.kernels = use.told()
        return runtime

    return load


def long_series_of(settings: Settings, bundle: Bundle) -> tuple[SeriesDevice | None, LongSeries | None]:
    """Where a filter computes long pieces of a series, and what is told of it: nothing on a server without a GPU.

    Raises:
        ConfigurationError: the memory of the GPU is too small.
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


def load_on_cpu(bundle: Bundle, choice: TextRuntime, streams: int, max_rows: int) -> Language:
    """A language bundle on the runtime of this choice, which must reproduce the golden outputs.

    Args:
        choice: "auto" is compiled code where that can run the bundle, and ONNX Runtime, with the reason in the log,
            where it cannot. What was named is never replaced.

    Raises:
        ConfigurationError: compiled code was asked for, and cannot run the bundle.
        BundleError: golden outputs that are not reproduced, or constants that do not fit.
    """
    if choice == "onnx":
        return LanguageRuntime(bundle, streams=streams, max_rows=max_rows)
    reason = compiled_refusal(bundle)
    if reason is not None and choice == "compiled":
        raise ConfigurationError(f"RFA_TEXT_RUNTIME=compiled: bundle {bundle.name!r} cannot run on it: {reason}")
    if reason is not None:
        logger.info("bundle %r runs on ONNX Runtime, not in compiled code: %s", bundle.name, reason)
        return LanguageRuntime(bundle, streams=streams, max_rows=max_rows)
    from rfa.runtime.text.compiled_language import CompiledLanguageRuntime, reproduce_golden

    runtime = CompiledLanguageRuntime(bundle, streams=streams)
    reproduce_golden(bundle, runtime)
    return runtime


def compiled_refusal(bundle: Bundle) -> str | None:
    """Why this bundle cannot run in compiled code here, or None."""
    try:
        from rfa.runtime.text.compiled_language import refusal
    except (ImportError, RuntimeError) as error:  # numba is absent, does not fit numpy, or has no place for its cache
        return str(error)
    return refusal(bundle)


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


def gpu_refusal() -> str | None:
    """What is missing where torch can use no GPU, and what to do about it; None where it can."""
    try:
        import torch
    except ImportError:
        return "torch, which is not installed: in a checkout pip install -e '.[gpu,fast]'"
    if torch.version.cuda is None:
        return (
            f"torch with CUDA, and torch {torch.__version__} is built without: install the build for your CUDA version "
            "from pytorch.org"
        )
    if not torch.cuda.is_available():
        return (
            f"an NVIDIA GPU, and torch {torch.__version__} finds none, or not the one that is meant: see how many "
            "nvidia-smi lists, and whether the container was given them (docker run --gpus all)"
        )
    return None

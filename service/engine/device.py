"""What a server's device means for its language models: ONNX Runtime on a CPU, torch on a GPU.

Filters run on ONNX Runtime in either case: they are small, and their steps are spread over the processes.
"""

from __future__ import annotations

from collections.abc import Callable

from export.bundle import Bundle
from service.engine.language_runtime import Language, LanguageRuntime
from service.schemas import MAX_SAMPLES
from service.settings import ConfigurationError, Settings

LoadLanguage = Callable[[Bundle], Language]


def language_loader(settings: Settings) -> LoadLanguage:
    """How language bundles are loaded for these settings.

    Raises:
        ConfigurationError: the device is not there, with what to do about it. The loader raises it as well, when the
            memory of the device is too small.
    """
    streams = settings.max_running * MAX_SAMPLES
    if settings.device != "cuda":
        return lambda bundle: LanguageRuntime(bundle, streams=streams, max_rows=settings.max_batch_rows)
    check_gpu()
    from service.engine.torch_golden import check_golden_on
    from service.engine.torch_language_runtime import TorchLanguageRuntime

    def load(bundle: Bundle) -> Language:
        runtime = TorchLanguageRuntime(bundle, device="cuda", streams=streams, max_rows=settings.max_batch_rows)
        check_golden_on(runtime, bundle)
        return runtime

    return load


def check_gpu() -> None:
    """Find out whether torch can use a GPU.

    Raises:
        ConfigurationError: it cannot.
    """
    otherwise = "or serve with RFA_DEVICE=cpu"
    try:
        import torch
    except ImportError:
        raise ConfigurationError(
            f"RFA_DEVICE=cuda needs torch, which is not installed: pip install 'rfa-server[gpu]', {otherwise}"
        ) from None
    if torch.version.cuda is None:
        raise ConfigurationError(
            f"RFA_DEVICE=cuda needs torch with CUDA, and torch {torch.__version__} is built without: install the build "
            f"for your CUDA version from pytorch.org, {otherwise}"
        )
    if not torch.cuda.is_available():
        raise ConfigurationError(
            "RFA_DEVICE=cuda: torch finds no NVIDIA GPU: see whether nvidia-smi lists one and whether the container "
            f"was given it (docker run --gpus all), {otherwise}"
        )

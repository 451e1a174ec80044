"""Kernels compiled before the first start: by `make serve` when it sets up, and in the image when it is built.

A start with kernels on disk takes seconds, one without a minute.
"""

from __future__ import annotations

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor

from rfa.service.settings import Settings

# One process compiles the longest kernel, the other all else.
PROCESSES = 2


def compile_ahead(settings: Settings) -> float:
    """Load the models as a server would, which compiles what they run; seconds that it took.

    Raises:
        BundleError: a bundle is refused.
    """
    begun = time.monotonic()
    count = min(PROCESSES, settings.processes)
    with ProcessPoolExecutor(count, multiprocessing.get_context("spawn")) as pool:
        for _ in pool.map(_load, [settings] * count):
            pass
    return time.monotonic() - begun


def _load(settings: Settings) -> None:
    from rfa.service.engine.models import load_models

    load_models(settings)

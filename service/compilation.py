"""Log that kernels are being compiled."""

from __future__ import annotations

import logging
from functools import cache

from rfa.runtime.messages import COMPILING

logger = logging.getLogger("rfa.server")


@cache
def log_compilation() -> None:
    """Log that kernels are being compiled, at most once in this process."""
    logger.info(COMPILING)

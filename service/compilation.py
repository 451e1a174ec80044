"""Log that kernels are being compiled."""

from __future__ import annotations

import logging
from functools import cache

from rfa.runtime.messages import COMPILING

logger = logging.getLogger("rfa.server")


@cache
def log_compilation() -> None:
    """Log that kernels are being compiled. Only the first call in a process writes a log line."""
    logger.info(COMPILING)

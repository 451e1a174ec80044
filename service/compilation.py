"""Log message about the compilation of kernels."""

from __future__ import annotations

import logging
from functools import cache

from rfa.runtime.messages import COMPILING

logger = logging.getLogger("rfa.server")


@cache
def log_compilation() -> None:
    """Log the message once in this process."""
    logger.info(COMPILING)

"""The message about compiling kernels, logged once by whichever process compiles first."""

from __future__ import annotations

import logging
from functools import cache

from rfa.runtime.messages import COMPILING

logger = logging.getLogger("rfa.server")


@cache
def log_compilation() -> None:
    """Log it, once in this process."""
    logger.info(COMPILING)

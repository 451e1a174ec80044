"""The message about compiling kernels, logged once by whichever process compiles first."""

from __future__ import annotations

import logging
from functools import cache
from typing import Final

COMPILING: Final = "compiling the CPU kernels, once: about a minute, or some minutes on a slow machine"

logger = logging.getLogger("rfa.server")


@cache
def log_compilation() -> None:
    """Log it, once in this process."""
    logger.info(COMPILING)

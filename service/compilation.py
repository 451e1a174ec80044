"""What is said, by every door and once, when kernels are compiled; light, for the supervisor says it, too."""

from __future__ import annotations

import logging
from functools import cache
from typing import Final

COMPILING: Final = "compiling for this processor, once: half a minute, or some minutes where it is slow"

logger = logging.getLogger("rfa.server")


@cache
def log_compilation() -> None:
    """Log it, the first time that this process is told."""
    logger.info(COMPILING)

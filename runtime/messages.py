"""Messages that several interfaces use. This module must not import much, because the supervisor of a server imports
it."""

from __future__ import annotations

from typing import Final

COMPILING: Final = (
    "compiling the CPU kernels; this is done once per version and takes about a minute, or longer on a slow machine"
)

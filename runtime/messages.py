"""Messages that all interfaces share. This module must import little, because the supervisor of a server imports it."""

from __future__ import annotations

from typing import Final

COMPILING: Final = (
    "compiling the CPU kernels, which is done once per version and takes about a minute, or longer on a slow machine"
)

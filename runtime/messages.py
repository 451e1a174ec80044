"""Messages that all interfaces share. The module must stay light, because the supervisor of a server imports it."""

from __future__ import annotations

from typing import Final

COMPILING: Final = "compiling the CPU kernels, once per version: this takes about a minute, or longer on a slow machine"

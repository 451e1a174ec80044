"""How long the parts of an orderly end may take beyond `shutdown_grace_seconds`."""

from __future__ import annotations

# The engine interrupts what is left at the end of the grace time, and waits for the quantum under way.
QUANTUM_SECONDS = 10.0
# For the last words of handlers whose jobs were handed back.
FLUSH_SECONDS = 2.0
# All of it, and another quantum in which the worker threads end: then the process is killed.
CLOSE_SECONDS = 2 * QUANTUM_SECONDS + FLUSH_SECONDS

"""Time limits for a shutdown, in addition to `shutdown_grace_seconds`."""

from __future__ import annotations

# After the grace time, the engine interrupts its jobs and waits for the running quantum.
QUANTUM_SECONDS = 10.0
# Time for handlers to send the end of interrupted jobs.
FLUSH_SECONDS = 2.0
# After all of this, and another quantum for the worker threads, the process is killed.
CLOSE_SECONDS = 2 * QUANTUM_SECONDS + FLUSH_SECONDS

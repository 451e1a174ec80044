"""Time limits for a shutdown, in addition to `shutdown_grace_seconds`."""

from __future__ import annotations

# After the grace period, the engine interrupts its jobs, and waits this long for the end of the running quantum.
QUANTUM_SECONDS = 10.0
# Time for handlers to send the results of interrupted jobs.
FLUSH_SECONDS = 2.0
# After this time, which includes another quantum for the worker threads, the process is killed.
CLOSE_SECONDS = 2 * QUANTUM_SECONDS + FLUSH_SECONDS

"""A server process that also writes down how much it works between one beat of its event loop and the next.

Times on the wall of a machine that others share tell little about a server; the processor time between two beats tells
how long its event loop was held up by its own work. `turns` reads what is written here: TURNS is the folder.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import time
from pathlib import Path

from rfa.service.process import child

BEAT_SECONDS = 0.005
RECORD = struct.Struct("=dd")  # monotonic clock; processor time of all threads


async def write_beats(file: Path) -> None:
    """A record for each beat, until cancelled."""
    with file.open("ab", buffering=0) as records:
        while True:
            records.write(RECORD.pack(time.monotonic(), time.process_time()))
            await asyncio.sleep(BEAT_SECONDS)


def main() -> None:
    """Serve, with beats beside."""
    run = child._run

    async def run_clocked(end: socket.socket, load: child.Load) -> int:
        beats = asyncio.create_task(write_beats(Path(os.environ["TURNS"]) / str(os.getpid())))
        try:
            return await run(end, load)
        finally:
            beats.cancel()

    child._run = run_clocked
    child.main()


if __name__ == "__main__":
    main()

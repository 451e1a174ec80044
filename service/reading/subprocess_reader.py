"""Read an uploaded file in a subprocess.

The uncompressed size of a file is not known, and readers of Parquet, archives and workbooks are large programs that may
have errors. Therefore, the operating system limits the memory, processor time and open files of the subprocess
(`child.py`), and does not let it write files.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from typing import Any, Final

import orjson

from rfa.service.child_environment import child_environment
from rfa.service.errors import InvalidRequest, PayloadTooLarge
from rfa.service.reading.child import ANSWERED, REFUSED

PROGRAM: Final = (sys.executable, "-P", "-m", "rfa.service.reading.child")
# Memory that is reserved for the interpreter and its libraries, and for the file.
BASE_BYTES: Final = 64 << 20
FILE_BYTES: Final = 64 << 20
SECONDS: Final = 10.0
# Limit on the elapsed time, including the start of the process.
TIMEOUT_SECONDS: Final = 60.0
# API keys and other settings are excluded.
INHERITED_VARIABLES: Final = ("HOME", "LANG", "LD_LIBRARY_PATH", "PATH", "TZDIR")
# The default allocator of Arrow reserves more memory than it uses.
PLAIN_ALLOCATOR: Final = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1"}


async def read_in_subprocess(content: bytes, options: dict[str, Any]) -> bytes:
    """Read the series in a file, and return a `ReadReply` as JSON. Cancelling this coroutine ends the subprocess.

    Args:
        content: Content of the file.
        options: Options of the loader, and the limit `most_numbers`.

    Raises:
        InvalidRequest: If the file cannot be read. The message of the loader may contain the name of a column or the
            content of a cell.
        PayloadTooLarge: If reading the file takes too much memory or time.
    """
    request = json.dumps({**options, "memory_bytes": FILE_BYTES, "seconds": SECONDS})
    environment = {name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ}
    with tempfile.TemporaryDirectory(prefix="rfa-read-") as empty:
        process = await asyncio.create_subprocess_exec(
            *PROGRAM,
            request,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            cwd=empty,
            env=child_environment({**environment, **PLAIN_ALLOCATOR}),
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                answer, _ = await process.communicate(content)
        except TimeoutError:
            answer = b""
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
    kind, document = answer[:1], answer[1:]
    if kind == ANSWERED:
        return document
    if kind == REFUSED:
        raise InvalidRequest(_sentence(orjson.loads(document)), code="unreadable_file")
    raise PayloadTooLarge("Reading the file takes too much memory or time; send a part of it.")


def _sentence(message: str) -> str:
    return message[:1].upper() + message[1:] + ("" if message.endswith((".", "!", "?")) else ".")

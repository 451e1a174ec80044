"""Entry point of a server process: `python -m rfa.service.process FD`. Imports and loading run without garbage
collection."""

import gc

gc.disable()  # full collections of permanent objects take a sixth of the start-up time

from rfa.service.process.child import main  # noqa: E402

main()

"""A server process: `python -m rfa.service.process FD`. It imports and loads without garbage collection."""

import gc

gc.disable()  # full collections of permanent objects took a sixth of the start

from rfa.service.process.child import main  # noqa: E402

main()

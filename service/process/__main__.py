"""Entry point of a server process: `python -m rfa.service.process FD`. Garbage collection is disabled while modules are
imported and bundles are loaded."""

import gc

gc.disable()  # otherwise, collections of permanent objects take a sixth of the time for the start

from rfa.service.process.child import main  # noqa: E402

main()

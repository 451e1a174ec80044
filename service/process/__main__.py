"""A server process: `python -m rfa.service.process FD`. It imports and loads with the garbage collector switched
off.
"""

import gc

gc.disable()  # full collections of permanent objects take a sixth of the start-up time

from rfa.service.process.child import main  # noqa: E402

main()

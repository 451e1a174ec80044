"""Run a model on numbers or tokens, without torch."""

from rfa.runtime.processor import set_target

# Here, so that it precedes every import of numba by a module of this package.
set_target()

"""Run models on numbers or tokens, without torch."""

from rfa.runtime.processor import set_target

# Set the target here, before any module of this package imports numba.
set_target()

"""Synthetic series for training. No series is recorded or modelled on a recorded series.

- `mixture`: `draw` samples a batch of series for a seed and an index.
- `clock`: time steps, start times and irregular times.
- `seasons`, `signals` (pulses and waves of any shape), `trends`, `structural`, `gaussian`, `autoregression`, `regimes`,
  `linear_sde`, `nonlinear_sde`, `chaos` and `events` (including sawtooth resets): families of signals, which are
  functions of a random generator and a clock.
- `noise`, `links`, `counts` and `faults`: conversion of a signal to observations.
"""

from rfa.training.synthetic.mixture import FAMILIES, OBSERVED, Drawn, draw

__all__ = ["FAMILIES", "OBSERVED", "Drawn", "draw"]

"""Synthetic series for training. No series is recorded or modelled on a recorded series.

mixture         `draw`: a batch of series for a seed and an index clock           steps, starts and irregular times
seasons, signals (pulses and waves of any shape), trends, gaussian, autoregression, regimes, linear_sde, nonlinear_sde,
chaos, events (and sawtooth resets)
                families: functions of a random generator and a clock noise, links, counts, faults
                observation of a signal
"""

from rfa.training.synthetic.mixture import FAMILIES, OBSERVED, Drawn, draw

__all__ = ["FAMILIES", "OBSERVED", "Drawn", "draw"]

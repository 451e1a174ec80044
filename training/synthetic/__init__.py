"""Synthetic series for training; none is recorded or modelled on a recorded one.

mixture         `draw`: a batch of series by a seed and its number
clock           steps, starts and irregular times
seasons, signals, trends, gaussian, autoregression, regimes, linear_sde, nonlinear_sde, chaos, events
families: functions of a random generator and a clock
noise, links, counts, faults
how a signal is observed
"""

from rfa.training.synthetic.mixture import FAMILIES, OBSERVED, Drawn, draw

__all__ = ["FAMILIES", "OBSERVED", "Drawn", "draw"]

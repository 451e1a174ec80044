"""Synthetic series for training, of which a network learns what series are like; none is recorded, or made after one.

mixture         `draw`: a batch of series by a seed and its number
clock           steps, starts and irregular times
seasons, signals, trends, gaussian, autoregression, regimes, linear_sde, nonlinear_sde, chaos, events
families: functions of a random generator and a clock
noise, links, counts, faults
how a signal is seen
"""

from rfa.training.synthetic.mixture import FAMILIES, OBSERVED, Drawn, draw

__all__ = ["FAMILIES", "OBSERVED", "Drawn", "draw"]

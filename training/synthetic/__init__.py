"""Synthetic series for training: any numbers that people record, drawn from a seed.

`draw` gives a batch; `feed` batches from processes of their own. No value of a recorded series is in them.
"""

from rfa.training.synthetic.mixture import COMPOSED, FAMILIES, Drawn, draw

__all__ = ["COMPOSED", "FAMILIES", "Drawn", "draw"]

"""Constants of the robust update, for its two forms: in torch (`dense.py`, with the equations) and compiled."""

import math

# A: most nats of an observation; equal outliers with a share of 5 % have that many.
AGREEMENT = math.log(20)
# After a jump the measurement noise is this share of the innovation variance.
OPEN_NOISE = 0.01
# Least share of the state in the innovation variance.
LEAST_SHARE = 1e-6
# Bound of quadratic forms, so that no difference of infinities arises.
LARGEST_NIS = 1e30
# Learned noise: factors on R and their prior counts, of ten observations: eight with noise R, the others with Student-t
# noise of 2.5 degrees of freedom. KEPT_PRIOR of them is never forgotten; it costs 0.05 % of the error under Student-t
# noise. MEMORY: observations that the counts remember in addition to it.
NOISE_FACTORS = (1 / 3, 1.0, 3.0, 10.0, 30.0, 100.0, 1000.0)
PRIOR_COUNTS = (0.297, 8.915, 0.559, 0.166, 0.046, 0.016, 0.001)
KEPT_PRIOR = 0.1
MEMORY = 40.0
LARGEST_FACTOR = 1e12

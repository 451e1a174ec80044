"""Constants of the robust update, which the torch implementation (`dense.py`, with the equations) and compiled code
share."""

import math

# A: maximum nats per observation, as many as equal outliers with a share of 5 % have.
AGREEMENT = math.log(20)
# After a jump, the measurement noise is this share of the innovation variance.
OPEN_NOISE = 0.01
# Minimum share of the state in the innovation variance.
LEAST_SHARE = 1e-6
# Bound on quadratic forms, to avoid differences of infinities.
LARGEST_NIS = 1e30
# Learned noise: factors on R and their prior counts, which represent ten observations, eight with noise R and the
# others with Student-t noise of 2.5 degrees of freedom. A part of KEPT_PRIOR is never forgotten, which costs 0.05 % of
# the error under Student-t noise. MEMORY is the number of observations that the counts remember in addition.
NOISE_FACTORS = (1 / 3, 1.0, 3.0, 10.0, 30.0, 100.0, 1000.0)
PRIOR_COUNTS = (0.297, 8.915, 0.559, 0.166, 0.046, 0.016, 0.001)
KEPT_PRIOR = 0.1
MEMORY = 40.0
LARGEST_FACTOR = 1e12

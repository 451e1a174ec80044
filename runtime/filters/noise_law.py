"""Numbers of the robust update that its two forms share, the one in torch (`dense.py`, with the equations) and the
compiled one."""

import math

# A: nats that an observation counts for at most; outliers with a share of 5 % that are all alike give that many.
AGREEMENT = math.log(20)
# A state that jumped is as wide as makes the measurement noise this share of it.
OPEN_NOISE = 0.01
# Least share of the state in an innovation's variance that is told from none.
LEAST_SHARE = 1e-6
# Quadratic forms beyond it are one to the test, so that no difference of infinities arises.
LARGEST_NIS = 1e30
# Learned noise: factors on R; before anything was seen they count as ten observations, eight of them made with R
# and the others with Student-t noise of 2.5 degrees of freedom. The share of those that is never forgotten: a tenth
# costs 0.05 % of the error under Student-t noise, where it is seen most. Observations that the counts remember beside
# it; the largest factor.
NOISE_FACTORS = (1 / 3, 1.0, 3.0, 10.0, 30.0, 100.0, 1000.0)
PRIOR_COUNTS = (0.297, 8.915, 0.559, 0.166, 0.046, 0.016, 0.001)
KEPT_PRIOR = 0.1
MEMORY = 40.0
LARGEST_FACTOR = 1e12

"""Constants of the robust update. The torch implementation (`dense.py`, which contains the equations) and compiled code
use them."""

import math

# Maximum evidence of one observation for a jump, in nats. It is log(1 / 0.05), for a fraction of outliers of 5 %.
AGREEMENT = math.log(20)
# After a jump, the measurement noise is this fraction of the innovation variance.
OPEN_NOISE = 0.01
# Minimum fraction of the state in the innovation variance.
LEAST_SHARE = 1e-6
# Bound on quadratic forms, to avoid differences of infinities.
LARGEST_NIS = 1e30
# Learned noise: factors by which R is multiplied, and their prior counts. The counts represent ten observations: eight
# with noise R, and two with Student-t noise of 2.5 degrees of freedom. A fraction KEPT_PRIOR of them is never
# forgotten, which increases the error under Student-t noise by 0.05 %. The counts remember MEMORY further observations.
NOISE_FACTORS = (1 / 3, 1.0, 3.0, 10.0, 30.0, 100.0, 1000.0)
PRIOR_COUNTS = (0.297, 8.915, 0.559, 0.166, 0.046, 0.016, 0.001)
KEPT_PRIOR = 0.1
MEMORY = 40.0
LARGEST_FACTOR = 1e12

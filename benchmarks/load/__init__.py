"""Open-loop load on a running server; every reply is compared with the model's own results.

scenario      what to send, for how long, and the budgets (TOML)
truth, check  the expected results, computed before anything is sent; replies compared with them
pacing        when to send, fixed before the run
live, requests  the clients: WS /filter/stream; POST /generate and /filter
tally, histogram  counts and latencies
generator, controller  client processes and the server together
overload, sessions  scenarios of more than one run
"""

"""Open-loop load on a running server, every answer checked against what the models say alone.

scenario   what to send, for how long, and the budgets; from a TOML file
truth      the right answers, computed in this process before anything is sent
pacing     when to send: fixed before the run, so that a slow server cannot slow the offered load down
live, requests    the clients: WS /filter/stream; POST /generate and /filter
check      replies against the truth
tally      counts and latency histograms; generator runs them in a process of its own
controller generators and the server together; report, plot
overload, sessions    scenarios that are more than one run
"""

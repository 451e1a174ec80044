"""Who may ask, and what is written down about it: API keys, request ids, access log, traces."""

"""API keys, request ids, access log and traces."""

"""States between requests: sealed tokens that clients hold, and named sessions that the server holds."""

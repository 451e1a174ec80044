"""State between requests: keys, state tokens and session names."""

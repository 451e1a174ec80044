"""State between requests: keys, sealed tokens and session names."""

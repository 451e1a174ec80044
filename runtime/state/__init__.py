"""State between requests: keys, sealed tokens, names of sessions."""

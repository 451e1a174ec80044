"""Load and save the states of requests, as state tokens or in named sessions."""

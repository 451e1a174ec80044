"""Filter requests and live streams at work."""

"""What a network for any series learns from, and how it is judged."""

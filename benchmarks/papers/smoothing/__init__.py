"""Continuous measurements, and attention in both directions (AFA A.3)."""

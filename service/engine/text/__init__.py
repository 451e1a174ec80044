"""Texts at work."""

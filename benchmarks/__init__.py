"""Measurements of the product from outside, and the tables and pictures of the papers."""

"""Generates docs/RESULTS.md and the table of the README from the files of results/."""

"""The `rfa` command."""

"""Entry point of `python -m rfa`, which is the same as the command `rfa`."""

from rfa.cli.main import app

app(prog_name="rfa")

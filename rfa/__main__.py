"""`python -m rfa` is `rfa`."""

from rfa.cli.main import app

app(prog_name="rfa")

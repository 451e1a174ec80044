"""`python -m cli` is `rfa`."""

from cli.main import app

app(prog_name="rfa")

"""One network for any series: what it sees of a stream, and how it forecasts."""

"""The network for any series, in torch: how it is trained, and how it forecasts many rows at once."""

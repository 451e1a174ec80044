"""`rfa watch`: filter the series of a metrics store as they arrive, and write back scores, intervals and incidents."""

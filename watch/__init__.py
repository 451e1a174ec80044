"""`rfa watch`: filters the series of a metrics store as they arrive, and writes back scores, intervals and
incidents.
"""

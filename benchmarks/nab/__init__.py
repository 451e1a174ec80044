"""The Numenta Anomaly Benchmark."""

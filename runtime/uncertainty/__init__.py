"""Reliability of results: intervals, anomaly scores, alarms and diagnostics."""

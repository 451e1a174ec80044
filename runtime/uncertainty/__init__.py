"""What a reply says of its own reliability: intervals, anomaly scores, alarms, diagnostics."""

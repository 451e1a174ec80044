"""Export of trained runs as bundles, and verification of bundles."""

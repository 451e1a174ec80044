"""Open, check and describe bundles: manifest, hashes, signature and calibration."""

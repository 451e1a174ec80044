"""Open, check and describe a bundle: manifest, hashes, signature, calibration."""

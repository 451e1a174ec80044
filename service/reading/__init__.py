"""Read uploaded files in a subprocess."""

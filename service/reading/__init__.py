"""Reading of uploaded files in a subprocess."""

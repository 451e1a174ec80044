"""Files of strangers are read apart from what serves."""

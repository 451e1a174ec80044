"""Quality and speed of language models."""

"""Jobs and stages of text generation."""

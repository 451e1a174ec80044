"""Systems and experiments of the papers."""

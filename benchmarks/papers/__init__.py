"""Systems and tables of the papers."""

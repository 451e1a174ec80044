"""Token mixers of the papers' other systems, which `rfa.model.mixing` looks up by their name in a configuration."""

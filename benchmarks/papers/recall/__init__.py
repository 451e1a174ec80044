"""What a state of constant size can recall."""

"""What `rfa eval` measures."""

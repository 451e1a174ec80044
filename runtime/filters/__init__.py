"""Linear systems and structural models: discretise, predict, update, smooth and fuse."""

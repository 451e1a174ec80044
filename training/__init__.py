"""From data to a trained run, and what a run or a bundle is worth."""

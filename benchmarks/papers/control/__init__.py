"""Model predictive control in the eigenbasis (AFA B.5)."""

"""From a trained run to a bundle, and from a bundle back to arrays and sessions."""

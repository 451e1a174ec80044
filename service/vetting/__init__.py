"""Bundles are tried before they are served."""

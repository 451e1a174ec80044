"""Checks of bundles before they are served."""

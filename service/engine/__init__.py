"""The engine. It runs the models of the bundles, without HTTP."""

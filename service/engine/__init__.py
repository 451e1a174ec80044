"""Engine that runs the models of the bundles. It does not depend on HTTP."""

"""One file a resource, thin: parse → engine → shape."""

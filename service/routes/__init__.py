"""HTTP routes, with one file per resource. A route parses the request, calls the engine and builds the reply."""

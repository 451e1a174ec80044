"""Named sessions stored by the server."""

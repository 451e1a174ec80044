"""Named sessions that the server keeps."""

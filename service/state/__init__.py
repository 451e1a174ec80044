"""Named sessions that the server stores."""

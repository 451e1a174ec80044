"""From a bundle to answers over HTTP and WebSockets."""

"""HTTP/1.1 and WebSocket connections with limits on bytes and time.

h11 parses HTTP, and websockets' `ServerProtocol` parses frames; neither does I/O. This package adds limits, timers,
flow control and ordering:

- Head: it must be complete within `header_timeout_seconds` (408), have at most `max_header_bytes` bytes and
  `MAX_HEADERS` headers (431), and be valid according to RFC 9112 (400). See `rfa.service.http.head`.
- Body: the total size of chunk sizes, extensions and trailers has the same limit as a body (413). Trailers must be
  small (431) and are discarded. `rfa.service.body` limits the time. After an early response, the rest is discarded.
- Upgrade: a GET request without a body can be upgraded to a WebSocket. Other upgrades are ignored.
- Response: a client that reads nothing for `send_timeout_seconds` is disconnected.
- Pipelining: during a response, up to `MAX_AHEAD_BYTES` of later requests are read.
- Frames: a message has a maximum number of bytes and fragments. While a client reads nothing, its frames are not read.
- Connections: beyond `max_connections`, the connection that has been idle longest is closed. If no connection is idle,
  the new one is rejected (503).
- Memory: incomplete heads and messages reserve memory from the budget of the process (`rfa.service.memory`).
- Fairness: a connection is processed for `SLICE_SECONDS` at a time, and all connections together for
  `ITERATION_SECONDS` in each iteration of the event loop.

Each rejected request gets an error response with a request id, is logged in the access log, and is counted.
"""

"""HTTP/1.1 and WebSocket connections with limits on bytes and time.

h11 parses HTTP, and websockets' `ServerProtocol` parses frames; neither does I/O. This package adds limits, timers,
flow control and ordering:

    head      complete within `header_timeout_seconds` (408), at most `max_header_bytes` and `MAX_HEADERS` (431), and
              valid by RFC 9112 (400), see `rfa.service.http.head`
    body      chunk sizes, extensions and trailers together are no larger than a body may be (413), trailers are small
              (431) and discarded; `rfa.service.body` limits its time; after an early response the rest is discarded
    upgrade   to a WebSocket by a GET without a body; other upgrades are ignored
    response  a client that reads nothing for `send_timeout_seconds` is disconnected
    pipeline  up to `MAX_AHEAD_BYTES` of later requests are read during a response; the rest waits in the socket
    frames    a message has limits on bytes and fragments; while the client reads nothing, none of its frames is read
    sockets   beyond `max_connections` the connection that has been idle longest is closed; if none is idle, 503
    memory    unfinished heads and messages reserve memory from the budget of the process (`rfa.service.memory`)
    fairness  one connection is processed for `SLICE_SECONDS` at a time, all for `ITERATION_SECONDS` per loop iteration

Each rejected request gets an error response with a request id, a line in the access log and a count.
"""

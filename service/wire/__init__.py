"""The wire: HTTP/1.1 and WebSocket connections, every byte and second of them within a budget.

The bytes are read by two maintained parsers that do no input or output of their own: h11 for HTTP, websockets'
`ServerProtocol` for frames. What is ours is what they leave to their users: budgets, timers, flow control, order.

    head      from the first byte (the first: from the opening) to its end within `header_timeout_seconds` → 408,
              at most `max_header_bytes` and `MAX_HEADERS` → 431, by the letter of RFC 9112 → 400
    (`rfa.service.wire.head`) body      framed as it declares, whatever else the head asks for; chunk sizes, extensions
              and trailers together are no larger than a body may be → 413; trailers are dropped, and small → 431; gaps
              and the whole are bounded where it is read (`rfa.service.body`); what is left after the answer is thrown
              away for a short while and up to that size
    upgrade   to a WebSocket, by a GET without a body; any other is an ordinary request of HTTP/1.1
    answer    a reader that takes nothing for `send_timeout_seconds` is cut, with whatever its socket still holds
    ahead     what a client sends before it has its answer waits in its own socket beyond `MAX_AHEAD_BYTES`
    frames    a message has a size and a number of fragments; while the peer takes nothing, nothing of it is read, so
              that answers to pings cannot pile up
    sockets   beyond `max_connections` the longest-waiting client that has not said what it wants makes room; where all
              have, the new one hears 503
    memory    what unfinished heads and messages hold is leased from the process's budget (`rfa.service.memory`)
    turns     one connection is worked on for `TURN_SECONDS` at a time, all for `ROUND_SECONDS` in a round of the loop

Every refusal has the one error shape, a request id, a line in the access log and a count.
"""

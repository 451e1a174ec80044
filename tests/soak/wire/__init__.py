"""A fuzzer of the wire: grammar-based HTTP/1.1 and WebSocket byte streams, judged by a reference parse.

    python -m tests.soak.wire --connections 1000000 [--through nginx] [--seed 7] [--seconds 1800] [--processes 2]

    rfc9112, rfc6455   what a stream of bytes says, by the letter of the RFCs: the oracle
    answers            what the server said back
    application        what this server answers to a request that is legal
    judge              both held against each other
    grammar, frames    streams with framing lies, and honest requests in between
    case, client       when which bytes are sent, and what came back
    victims            honest clients that run all the time beside it
    served, nginx      the server, its log and gauges; the proxy before it

`rfc9112`, `rfc6455` and `answers` are written from the RFCs and share no code with any parser of the server.
"""

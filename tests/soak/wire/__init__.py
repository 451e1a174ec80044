"""A fuzzer of the wire: grammar-based HTTP/1.1 and WebSocket byte streams, checked by reference parsers.

    python -m tests.soak.wire --connections 1000000 [--through nginx] [--seed 7] [--seconds 1800] [--processes 2]

    rfc9112, rfc6455   reference parsers of requests and frames
    answers            a strict parser of the server's answers
    application        the answers of this server to valid requests
    judge              compares answers with the reference parse
    grammar, frames    streams with invalid framing among valid requests
    case, client       the bytes to send with their times, and the received bytes
    victims            well-behaved clients that run all the time
    served, nginx      the server with its log and gauges; the proxy in front of it

`rfc9112`, `rfc6455` and `answers` follow the RFCs and share no code with the parsers of the server.
"""

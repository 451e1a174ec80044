"""A fuzzer of the wire: streams of HTTP/1.1 and WebSocket bytes whose right outcomes are known from their making.

    python -m tests.soak.wire --connections 1000000 [--through nginx] [--seed 7] [--seconds 1800]

    streams    valid requests, and oddities in them, each with what must become of it
    judge      compares answers, which h11 and websockets parse, with these outcomes
    client     sends the bytes of one connection
    nginx      the proxy in front of the server

A bait is a request within the body of another request. It must never be served.
"""

"""Faults on purpose, against real server processes: what was acknowledged stays, what was held is given back.

server, redis_process   started, killed and started again on their ports
streams, texts          clients that lose their connection, resume from their last state, and check every number
probe                   good clients in a process of their own, whose latency tells what the faults cost others
sockets                 clients below HTTP: silent, slow, half-open, gone with a reset
detect                  what must be zero afterwards: slots, streams, requests, processes

kill, sigterm, storm, half_open are the scenarios; `python -m rfa.bench.faults NAME|all` runs their long forms.
"""

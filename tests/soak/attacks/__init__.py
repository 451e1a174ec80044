"""Attacks on the edge of a real `rfa serve`, each beside live clients, with memory and every answer watched.

    python -m tests.soak.attacks [--only NAME …] [--seconds S] [--list]

catalogue   what an attack is, and all of them by family: `framing` (1 and 3), `bodies` (4), `replies` (5), `prompts`
            (6) and `flow` (12); the tests of the service have those that need no load
stage       what a driver has: raw connections whose answers are read and judged, and a clock
attacker    a driver in a process of its own: one client
memory      resident memory of every server process
conduct     one attack: calm, attack, after; its bars
"""

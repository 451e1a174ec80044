"""Attacks on a real `rfa serve`, each beside live clients, with memory and every answer checked.

    python -m tests.soak.attacks [--only NAME …] [--seconds S] [--list]

catalogue   the class of attacks, and all of them by family: `framing` (1 and 3), `bodies` (4), `replies` (5),
            `prompts` (6) and `flow` (12); attacks without load are tests of the service
stage       tools of an attack: raw connections whose answers are read and checked, and a clock
attacker    an attack in a process: one client
memory      resident memory of every server process
conduct     one attack: before, during and after; its requirements
"""

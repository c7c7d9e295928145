"""Compares `epp load` with a third-party benchmark client, on the same gateway.

``.venv/bin/python -m tools.clients --aiperf PATH``

In each round aiperf sends its own synthetic traffic through `epp up`. The fleet records the arrival
time, prompt length and output length of each request; `epp load` then replays that as a trace.
`figures` reads the numbers that both report, `gateway` runs the programs, `main` compares.
"""

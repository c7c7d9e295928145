"""Compares `epp load` with a benchmark client of somebody else, on the same gateway.

``.venv/bin/python -m tools.clients --aiperf PATH``

In each round aiperf sends its own synthetic traffic through `epp up`. The fleet records when each
request came and how long its prompt and output were; `epp load` then replays that as a trace.
`figures` are the numbers both report, `gateway` and `aiperf` run the programs, `main` compares.
"""

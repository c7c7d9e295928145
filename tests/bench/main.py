"""The benchmark: CPU per request above the bare transport, the cycle, a burst; one run, all of it.

``.venv/bin/python tests/bench/run.py [--quick] [--profile] [--json FILE]``
"""

import argparse
import os
import platform
from pathlib import Path

import msgspec
import uvloop
from bench import hotspots, in_process, processes, tables, through_envoy
from bench.through_envoy import Settings
from rich.console import Console

from epp.lab.envoy import Mode

BURST_REQUESTS = 60
BURST_ENDPOINTS = 6


async def main(given: argparse.Namespace, console: Console) -> dict[str, object]:
    """Run the parts asked for, print their tables and return everything."""
    parts = {given.only} if given.only else {"envoy", "micro", "burst"}
    results: dict[str, object] = {"cores": os.cpu_count(), "python": platform.python_version()}
    settings = Settings(seconds=1.0 if given.quick else 5.0, pause_ms=given.pause_ms)
    repeats = 3 if given.quick else 9
    async with processes.upstream(through_envoy.ENDPOINTS) as upstream:
        endpoints = upstream.ready["endpoints"]
        if "envoy" in parts:
            console.print(f"{through_envoy.CONCURRENCY} in parallel, {settings} ...")
            cells = await through_envoy.measure(settings, endpoints)
            idle = await through_envoy.idle_share_with_default_scrapes(endpoints, settings.seconds)
            results |= {"through_envoy": cells, "idle_share_50ms_scrapes": idle}
            console.print(tables.through_envoy(cells, settings), tables.idle(idle))
            console.print(tables.verdict(cells))
        if "micro" in parts or given.profile:
            recorded = {
                (mode.value, chunks): await through_envoy.record(endpoints, mode, chunks)
                for mode in Mode
                for chunks in (through_envoy.CHUNKS if mode is Mode.FULL_DUPLEX else (1,))
            }
            if "micro" in parts:
                cycles = in_process.cycles(repeats)
                parse_us = in_process.parse_us(repeats)
                paths = in_process.paths(recorded, repeats)
                results |= {"cycles": cycles, "parse_us": parse_us, "paths": paths}
                console.print(tables.cycles(cycles), tables.paths(paths, parse_us))
            if given.profile:
                messages = recorded[(given.profile, 1)]
                functions = hotspots.by_function(messages, 20_000)
                lines = hotspots.by_line(messages, 60_000)
                results |= {"functions": functions, "lines": lines}
                console.print(tables.hotspots(functions, lines, given.profile))
        if "burst" in parts:
            some = endpoints[:BURST_ENDPOINTS]
            for scrapes, most, options in (
                ("no scrape in between", 1, through_envoy.NO_SCRAPES),
                ("scrapes every 50 ms", None, ()),
            ):
                served, errors = await through_envoy.burst(some, BURST_REQUESTS, *options)
                results[f"burst, {scrapes}"] = {"served": served, "errors": errors}
                console.print(tables.burst(served, errors, BURST_ENDPOINTS, scrapes, most))
    return results


def command() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="1 s per cell instead of 5")
    parser.add_argument("--pause-ms", type=float, default=10.0, help="between two chunks")
    parser.add_argument("--only", choices=("envoy", "micro", "burst"))
    parser.add_argument(
        "--profile",
        choices=[mode.value for mode in Mode],
        nargs="?",
        const=Mode.LEAN.value,
        help="also profile the straight path in this mode",
    )
    parser.add_argument("--json", type=Path, help="write the results there")
    arguments = parser.parse_args()
    measured = uvloop.run(main(arguments, Console(width=130)))
    if arguments.json:
        arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(measured)))

"""Process that runs a share of the attacks.

It prints that it is ready, begins at a line on its input, stops at the end of the input, and prints
the outcomes of its requests. It has a lower priority than the gateway: real attackers use machines
of their own.
"""

import argparse
import asyncio
import json
import os
import sys
from collections import Counter
from typing import NoReturn

import uvloop

from tools.attacks.attack import Attack, Tally, Target
from tools.attacks.catalogue import ATTACKS
from tools.attacks.sending import NICENESS

END_SECONDS = 5.0
"""Time for cancelled attacks to end their requests."""


async def attack(attacks: list[Attack], target: Target) -> NoReturn:
    """Attack until the input ends, print the tallies and end the process."""
    tallies: dict[str, Tally] = {each.name: Counter() for each in attacks}

    async def run(each: Attack) -> None:
        try:
            await each.run(target, tallies[each.name])
        except Exception as error:
            tallies[each.name][f"FAILED: {error!r}"] += 1

    running = [asyncio.create_task(run(each), name=each.name) for each in attacks]
    await asyncio.to_thread(sys.stdin.read)
    for task in running:
        task.cancel()
    await asyncio.wait(running, timeout=END_SECONDS)
    print(json.dumps(tallies), flush=True)
    # Without closing the loop, which could delay the result.
    os._exit(0)


def main() -> None:
    """Read the command line and attack."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", type=Target.of, required=True)
    parser.add_argument("names", nargs="+", choices=ATTACKS)
    given = parser.parse_args()
    attacks = [ATTACKS[name]() for name in given.names]
    for each in attacks:
        each.prepare()
    print("ready", flush=True)
    sys.stdin.readline()
    os.nice(NICENESS)
    uvloop.run(attack(attacks, given.target))


if __name__ == "__main__":
    main()

"""Runs commands that serve until a signal, and stops them once they have started."""

import asyncio
from collections.abc import Callable
from typing import Any


def run_once(main: Callable[[asyncio.Event], Any], **_: object) -> None:
    """Stop as soon as the parts have started."""

    async def run() -> None:
        stop = asyncio.Event()
        stop.set()
        await main(stop)

    asyncio.run(run())

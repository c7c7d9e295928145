"""Captures log events and lets a test wait for one."""

import asyncio
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, NoReturn

import structlog
from structlog.testing import LogCapture


class Logs(LogCapture):
    """The events logged while a test runs."""

    def __init__(self) -> None:
        super().__init__()
        self._news: asyncio.Queue[str] = asyncio.Queue()

    def __call__(self, logger: Any, method: str, event: MutableMapping[str, Any]) -> NoReturn:
        self._news.put_nowait(str(event))
        super().__call__(logger, method, event)

    async def until(self, part: str) -> None:
        """Wait until a logged event contains ``part``."""
        while part not in await self._news.get():
            pass


@contextmanager
def watched_logs() -> Iterator[Logs]:
    """Capture the events of all loggers."""
    captured = Logs()
    processors = structlog.get_config()["processors"]
    before = list(processors)
    processors[:] = [captured]  # in place: loggers that were made before hold this list
    try:
        yield captured
    finally:
        processors[:] = before

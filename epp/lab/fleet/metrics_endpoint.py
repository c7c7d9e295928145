"""`/metrics` of one fake server, with its faults."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Protocol

from epp.lab.fleet.exchange import Exchange
from epp.lab.fleet.faults import ServerFaults
from epp.lab.fleet.metrics_page import CONTENT_TYPE, GARBLED_PAGE


class RenderablePage(Protocol):
    """A metrics page."""

    def render(self, *, without: Collection[str] = ()) -> bytes:
        """Return the current page, without some families."""


class MetricsEndpoint:
    """Responds to scrapes."""

    def __init__(self, page: RenderablePage, faults: ServerFaults) -> None:
        self._page = page
        self._faults = faults
        self._stale: bytes | None = None

    def freeze(self) -> None:
        """Keep the current page, to be repeated as long as `ServerFaults.stale_metrics` is set."""
        self._stale = self._page.render()

    def respond(self, exchange: Exchange) -> None:
        """Respond to a scrape, now or after `ServerFaults.metrics_delay_seconds`."""
        delay = self._faults.metrics_delay_seconds
        if delay:
            asyncio.get_running_loop().call_later(delay, self._respond_now, exchange)
        else:
            self._respond_now(exchange)

    def _respond_now(self, exchange: Exchange) -> None:
        faults = self._faults
        if faults.metrics_status is not None:
            exchange.respond(faults.metrics_status)
        elif faults.garbled_metrics:
            exchange.respond(200, GARBLED_PAGE, CONTENT_TYPE)
        else:
            exchange.respond(200, self._current(), CONTENT_TYPE)

    def _current(self) -> bytes:
        faults = self._faults
        if not faults.stale_metrics:
            self._stale = None
            return self._page.render(without=faults.left_out_metrics)
        if self._stale is None:
            self.freeze()
        return self._stale or b""

"""The call behind ``epp drain``, which starts or ends the draining of an endpoint."""

import asyncio
from collections.abc import Callable, Mapping
from http import HTTPStatus
from math import inf
from typing import Final

import msgspec

from epp.data_layer.endpoints_page import EndpointLine
from epp.data_layer.named_endpoints import (
    AmbiguousNameError,
    NoSuchEndpointError,
    endpoint_named,
)
from epp.data_layer.store import EndpointStore
from epp.observability import AdminError
from epp.scheduling import Endpoint

PATH: Final = "endpoints/drain"
"""Path of the call below ``/debug/``, with the parameters ``endpoint``, ``seconds``, ``undo``."""

_PARAMETERS: Final = frozenset({"endpoint", "seconds", "undo"})


class Drained(msgspec.Struct, frozen=True, kw_only=True):
    """The response to the call."""

    endpoint: EndpointLine
    """Its line of ``/debug/endpoints``."""
    serving: int
    """How many endpoints of the pool take new requests."""


class DrainCalls:
    """Drains endpoints for operators; a listener of the pool.

    Args:
        store: The pool.
        line: Returns an endpoint's line of ``/debug/endpoints``.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        store: EndpointStore,
        *,
        line: Callable[[Endpoint], EndpointLine],
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._line = line
        self._clock = clock
        self._timers: dict[Endpoint, asyncio.TimerHandle] = {}
        """Ends of commands with a time limit."""

    def drain(self, given: Mapping[str, str]) -> Drained:
        """Drain an endpoint, given by name or ``ip:port``, or end its draining (``undo``).

        ``seconds`` limits the time; a repeated call replaces the limit.

        Raises:
            AdminError: There is no such endpoint, or a parameter is invalid.
        """
        if unknown := sorted(given.keys() - _PARAMETERS):
            known = ", ".join(sorted(_PARAMETERS))
            text = f"there is no parameter {unknown[0]!r}; there are {known}"
            raise AdminError(HTTPStatus.BAD_REQUEST, text)
        endpoint = self._found(given.get("endpoint", ""))
        undo, seconds = _undo(given), _seconds(given)
        self._forget(endpoint)
        if not undo:
            self._store.drains.commands[endpoint] = self._clock() + seconds
            if seconds < inf:
                loop = asyncio.get_running_loop()
                self._timers[endpoint] = loop.call_later(seconds, self._expired, endpoint)
        self._store.update_serving()
        return Drained(endpoint=self._line(endpoint), serving=len(self._store.serving))

    def endpoint_added(self, endpoint: Endpoint) -> None:
        """Ignore an endpoint without a command."""

    def endpoint_removed(self, endpoint: Endpoint) -> None:
        """End the command of an endpoint that has left the pool."""
        self._forget(endpoint)

    def _expired(self, endpoint: Endpoint) -> None:
        self._forget(endpoint)
        self._store.update_serving()

    def _forget(self, endpoint: Endpoint) -> None:
        self._store.drains.commands.pop(endpoint, None)
        if (timer := self._timers.pop(endpoint, None)) is not None:
            timer.cancel()

    def _found(self, wanted: str) -> Endpoint:
        try:
            return endpoint_named(wanted, self._store.snapshot)
        except AmbiguousNameError as error:
            raise AdminError(HTTPStatus.CONFLICT, str(error)) from error
        except NoSuchEndpointError as error:
            raise AdminError(HTTPStatus.NOT_FOUND, str(error)) from error


def _undo(given: Mapping[str, str]) -> bool:
    undo = given.get("undo", "false")
    if undo not in {"true", "false"}:
        raise AdminError(HTTPStatus.BAD_REQUEST, f"undo is {undo!r}, not true or false")
    return undo == "true"


def _seconds(given: Mapping[str, str]) -> float:
    """Return the time limit; inf for none."""
    text = given.get("seconds")
    if text is None:
        return inf
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds < inf:
        text = f"seconds is {text!r}, not a positive number"
        raise AdminError(HTTPStatus.BAD_REQUEST, text)
    return seconds

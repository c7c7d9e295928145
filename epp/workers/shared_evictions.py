"""Requests in flight that may be evicted: the owner of the queues evicts those of all workers.

Every worker keeps its own requests, as a single process does, and reports them to the owner. So
the next owner knows its own at once, and the others report theirs.
"""

from collections.abc import Callable
from itertools import count
from typing import Any

from epp.flow_control import InFlight, QueuedRequest, Revocable, RevocationObserver
from epp.flow_control.interfaces import FlowHost
from epp.flow_control.pressure.eviction import Evictions
from epp.scheduling import LLMRequest
from epp.workers.flow_messages import ENDED, KEPT, REVOKED, SPARED, Kept, facts_of, request_of
from epp.workers.links import Links


class _Remote(Revocable):
    """A request in flight of another worker."""

    def __init__(self, request: LLMRequest, revoke: Callable[[], None]) -> None:
        self._request = request
        self._revoke = revoke

    @property
    def request(self) -> LLMRequest:
        return self._request

    @property
    def queued(self) -> QueuedRequest | None:
        return None

    def revoke(self) -> None:
        self._revoke()


class SharedEvictions(Evictions):
    """The requests of this worker that can be evicted; of all workers while it owns the queues.

    Args:
        host: The flow controller.
        observer: Receives the events of evictions.
        links: The connections to the other workers.
        owner: Returns the worker that owns the queues; None if it is this one, or unknown.
    """

    def __init__(
        self,
        host: FlowHost,
        observer: RevocationObserver,
        links: Links,
        owner: Callable[[], int | None],
    ) -> None:
        super().__init__(host, observer)
        self._links = links
        self._owner = owner
        self._numbers = count(1)
        self._own: dict[int, InFlight] = {}
        self._number_of: dict[InFlight, int] = {}
        self._others: dict[int, dict[int, InFlight]] = {}
        """Requests of other workers, by worker and number."""
        links.receive(KEPT, self._other_kept)
        links.receive(SPARED, self._other_spared)
        links.receive(ENDED, self._other_ended)
        links.receive(REVOKED, self._revoked)

    # --- requests of this worker ------------------------------------------------------------------

    def keep(self, revocable: Revocable) -> InFlight | None:
        in_flight = super().keep(revocable)
        if in_flight is not None:
            number = next(self._numbers)
            self._own[number], self._number_of[in_flight] = in_flight, number
            self._send(KEPT, self._kept_message(number, in_flight))
        return in_flight

    def spare(self, in_flight: InFlight) -> None:
        super().spare(in_flight)
        if (number := self._number_of.get(in_flight)) is not None:
            self._send(SPARED, number)

    def ended(self, in_flight: InFlight) -> None:
        super().ended(in_flight)
        if (number := self._number_of.pop(in_flight, None)) is not None:
            del self._own[number]
            self._send(ENDED, number)

    def send_all(self) -> None:
        """Report all requests that may be evicted to a new owner."""
        for number, in_flight in self._own.items():
            if in_flight in self._kept:
                self._send(KEPT, self._kept_message(number, in_flight))

    def _send(self, subject: str, value: object) -> None:
        if (owner := self._owner()) is not None:
            self._links.send(owner, subject, value)

    def _kept_message(self, number: int, in_flight: InFlight) -> Kept:
        return Kept(number, facts_of(in_flight.request), in_flight.dispatched_at)

    def _revoked(self, worker: int, number: int) -> None:
        in_flight = self._own.get(number) if worker == self._owner() else None
        if in_flight is not None:
            in_flight.revocable.revoke()

    # --- requests of other workers ----------------------------------------------------------------

    def lost(self, worker: int) -> None:
        """Note the end of the requests of a worker."""
        for in_flight in self._others.pop(worker, {}).values():
            super().ended(in_flight)

    def _other_kept(self, worker: int, kept: Kept) -> None:
        others = self._others.setdefault(worker, {})
        if kept.number in others:
            return
        remote = _Remote(request_of(kept.facts), lambda: self._revoke_other(worker, kept.number))
        in_flight = others[kept.number] = InFlight(remote, kept.dispatched_at)
        self.add(in_flight)

    def _revoke_other(self, worker: int, number: int) -> None:
        self._links.send(worker, REVOKED, number)

    def _other_spared(self, worker: int, number: int) -> None:
        self._with_other(worker, number, super().spare)

    def _other_ended(self, worker: int, number: int) -> None:
        self._with_other(worker, number, super().ended)
        self._others.get(worker, {}).pop(number, None)

    def _with_other(self, worker: int, number: int, call: Callable[[InFlight], Any]) -> None:
        in_flight = self._others.get(worker, {}).get(number)
        if in_flight is not None:
            call(in_flight)

"""Queues the requests of this worker at another one, which owns the queues of flow control.

Each request is kept here until it is decided. If the owner ends, its successor is asked, with the
request's original time of arrival.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from time import monotonic_ns, thread_time
from typing import Final, Protocol

import structlog

from epp.flow_control import Candidate, FlowControl, NoPlaceError, Outcome, QueuedRequest
from epp.parsing.plugins import Usage
from epp.request_control.plugins import EndCause
from epp.scheduling import Endpoint
from epp.workers.flow_accounts import FlowAccounts
from epp.workers.flow_messages import (
    ASKED,
    CANCELLED,
    REPORTED,
    Asked,
    Declined,
    Ended,
    FlowReport,
    facts_of,
)
from epp.workers.links import Links

_log = structlog.get_logger(__name__)

OWNERLESS_SECONDS: Final = 15.0
"""How long requests wait for the next owner. A worker that hangs is killed after 10 s."""


class RequesterHost(Protocol):
    """The part of the flow controller that the requester uses."""

    active: FlowControl | None
    control: FlowControl | None

    def pool(self) -> Sequence[Endpoint]:
        """Return the current snapshot of the endpoints."""


class _Open:
    """A request that is not decided yet."""

    __slots__ = ("asked", "candidate", "queued")

    def __init__(self, candidate: Candidate, queued: QueuedRequest, asked: Asked) -> None:
        self.candidate = candidate
        self.queued = queued
        self.asked = asked


class FlowRequester:
    """The requests of this worker that wait in the queues of another one.

    Args:
        host: The flow controller.
        links: The connections to the other workers.
        accounts: The counts of this worker's plugins.
        rejected: Counts a request that is refused because there is no owner.
    """

    def __init__(
        self,
        host: RequesterHost,
        links: Links,
        accounts: FlowAccounts,
        rejected: Callable[[QueuedRequest], None],
    ) -> None:
        self.owner_waits = False
        """Whether the owner needs a report of each event."""
        self._host = host
        self._links = links
        self._accounts = accounts
        self._rejected = rejected
        self._owner: int | None = None
        self._has_given_up = False
        self._patience: asyncio.TimerHandle | None = None
        # Greater than the numbers of an earlier process and the sequence numbers of queues here.
        self._numbers = count(monotonic_ns())
        self._open: dict[int, _Open] = {}
        self._settled: list[int] = []
        self._declined: list[Declined] = []
        self._ended: list[Ended] = []
        self._is_due = False
        self._has_news = False

    @property
    def owner(self) -> int | None:
        """Number of the worker that owns the queues; None while that is unknown."""
        return self._owner

    @property
    def waiting(self) -> int:
        """The number of requests that are not decided yet."""
        return len(self._open)

    # --- requests ---------------------------------------------------------------------------------

    def submit(
        self, control: FlowControl, candidate: Candidate, ttl_seconds: float | None
    ) -> QueuedRequest | None:
        """Ask the owner for a grant; return the open request, None if it was refused."""
        queued = control.made(candidate, ttl_seconds)
        queued.sequence = next(self._numbers)
        if self._has_given_up:
            self._refuse_ownerless(queued, candidate)
            control.ledger.forget(queued)
            return None
        queued.queue.running += 1  # keeps the flow
        asked = Asked(
            queued.sequence,
            facts_of(queued.request),
            queued.received_at,
            queued.enqueued_at,
            ttl_seconds,
            queued.size_bytes,
        )
        self._open[asked.number] = _Open(candidate, queued, asked)
        if self._owner is None:
            self._await_owner()
        else:
            self._links.send(self._owner, ASKED, asked)
        return queued

    def cancel(self, queued: QueuedRequest, outcome: Outcome) -> bool:
        """Forget a request whose client is gone; return whether it was open here."""
        opened = self._open.pop(queued.sequence, None)
        if opened is None:
            return False
        self._close(opened)
        if self._owner is not None:
            self._links.send(self._owner, CANCELLED, (opened.asked.number, outcome.value))
        return True

    def take_all(self) -> Iterator[QueuedRequest]:
        """Yield all open requests in order of arrival: this worker now owns the queues."""
        self._owner, self.owner_waits, self._has_given_up = None, False, False
        self._stop_waiting()
        opened, self._open = self._open, {}
        self._settled, self._declined, self._ended = [], [], []
        for each in sorted(opened.values(), key=lambda each: each.queued.enqueued_at):
            each.queued.queue.running -= 1
            yield each.queued

    # --- messages ---------------------------------------------------------------------------------

    def led_by(self, worker: int) -> None:
        """Send all open requests to another worker, which now owns the queues."""
        self._owner, self._has_given_up = worker, False
        self._stop_waiting()
        self._accounts.forget_sent()
        for opened in self._open.values():
            self._links.send(worker, ASKED, opened.asked)
        self.report_news()

    def lost(self, worker: int) -> None:
        """Wait for the next owner if the current one is gone."""
        if worker == self._owner:
            self._owner, self.owner_waits = None, False
            if self._open:
                self._await_owner()

    def granted(self, worker: int, message: tuple[int, Sequence[str] | None]) -> None:
        """Send a granted request to an endpoint, or report that none can take it."""
        number, reasons = message
        opened = self._open.get(number) if worker == self._owner else None
        if opened is None:
            return
        candidate, queued = opened.candidate, opened.queued
        began, pool = thread_time(), self._host.pool()
        self.report_soon()
        if not pool:
            self._declined.append(Declined(number, "the pool has no endpoint", 0.0))
            return
        try:
            result = candidate.choose(pool, None)
        except NoPlaceError as error:
            self._declined.append(Declined(number, str(error), thread_time() - began))
            return
        except Exception as error:
            self._end(number)
            self._failed(candidate, queued, error)
            return
        if reasons is not None:
            queued.key, queued.reasons = number, reasons
        self._end(number)
        try:
            candidate.dispatch(queued, result, {})
        except Exception as error:
            self._failed(candidate, queued, error)

    def refused(self, worker: int, message: tuple[int, str, str, bool]) -> None:
        """End a request that the owner refuses."""
        number, outcome, why, pool_is_empty = message
        opened = self._open.pop(number, None) if worker == self._owner else None
        if opened is not None:
            self._close(opened)
            opened.candidate.turn_away(Outcome(outcome), why, pool_is_empty=pool_is_empty)

    # --- reports ----------------------------------------------------------------------------------

    def report_news(self) -> None:
        """Report an event that may have freed capacity."""
        self._has_news = True
        self.report_soon()

    def report_soon(self) -> None:
        """Send a report at the end of this iteration of the event loop."""
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._report)

    def _report(self) -> None:
        self._is_due = False
        has_news, self._has_news = self._has_news, False
        settled, declined, ended = self._settled, self._declined, self._ended
        self._settled, self._declined, self._ended = [], [], []
        if self._owner is not None:
            report = FlowReport(self._accounts.news(), has_news, settled, declined, ended)
            self._links.send(self._owner, REPORTED, report)

    # --- ends -------------------------------------------------------------------------------------

    def ended(self, queued: QueuedRequest, cause: str, usage: Usage | None) -> None:
        """Report the end of a request that was sent, if the owner's policies count it."""
        if self._accounts.has_policies:
            self._ended.append(Ended(queued.sequence, cause, usage))
            self.report_news()

    def _failed(self, candidate: Candidate, queued: QueuedRequest, error: Exception) -> None:
        self.ended(queued, EndCause.ERROR.value, None)
        candidate.fail(error)

    def _end(self, number: int) -> None:
        """Forget a request that is being sent; it is reported afterwards."""
        self._settled.append(number)
        self._close(self._open.pop(number))

    def _close(self, opened: _Open) -> None:
        queued, control = opened.queued, self._host.control
        queued.queue.running -= 1
        assert control is not None  # noqa: S101 - it has made the request
        control.ledger.forget(queued)

    def _await_owner(self) -> None:
        if self._patience is None:
            loop = asyncio.get_running_loop()
            self._patience = loop.call_later(OWNERLESS_SECONDS, self._give_up)

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _give_up(self) -> None:
        self._patience, self._has_given_up = None, True
        opened, self._open = self._open, {}
        _log.error("no worker owns the queues of flow control", requests=len(opened))
        for each in opened.values():
            self._close(each)
            self._refuse_ownerless(each.queued, each.candidate)

    def _refuse_ownerless(self, queued: QueuedRequest, candidate: Candidate) -> None:
        self._rejected(queued)
        why = f"the worker that owns the queues has been away for {OWNERLESS_SECONDS:.0f} s"
        candidate.turn_away(Outcome.REJECTED_CAPACITY, why, pool_is_empty=False)

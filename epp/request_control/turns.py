"""Large bodies take turns: one is decided in each turn of the event loop.

To parse 12 MB and give them back takes 20 ms. The last bytes of many such bodies may come in one
read; decided in one go, they would keep every other request waiting for all of them.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import structlog

from epp.request_control.director import Director
from epp.request_control.errors import RequestError
from epp.request_control.exchange import Exchange
from epp.request_control.pending import PendingDecision
from epp.request_control.plugins import EndCause

LARGE_BODY_BYTES: Final = 1 << 20
"""A longer body waits for its turn, and so does every compressed one: a thousandth may do."""

log = structlog.get_logger()


class Turns:
    """Hands requests to the director; a large one that comes in another's turn waits."""

    def __init__(self, director: Director) -> None:
        self._director = director
        self._is_taken = False
        self._waiting: deque[_Waiting] = deque()

    def handle(
        self,
        *,
        request_id: str,
        headers: Mapping[str, str],
        body: bytes,
        received_at: float,
        subset: Sequence[str] | None = None,
    ) -> Exchange | PendingDecision:
        """Decide a request at once, or in a turn of its own; see :meth:`Director.handle`.

        Raises:
            RequestError: What to answer instead.
        """
        # Spelled out, as nearly every request goes this way: a partial would cost 0.3 us.
        if len(body) <= LARGE_BODY_BYTES and "content-encoding" not in headers:
            return self._director.handle(
                request_id=request_id,
                headers=headers,
                body=body,
                received_at=received_at,
                subset=subset,
            )
        decide = partial(
            self._director.handle,
            request_id=request_id,
            headers=headers,
            body=body,
            received_at=received_at,
            subset=subset,
        )
        if self._is_taken:
            waiting = _Waiting(request_id, decide)
            self._waiting.append(waiting)
            return waiting
        self._take()
        return decide()

    def _take(self) -> None:
        self._is_taken = True
        asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self._is_taken = False
        while self._waiting:
            if self._waiting[0].is_wanted:
                self._take()
                self._waiting.popleft().decide()
                return
            self._waiting.popleft()


class _Waiting(PendingDecision):
    """A request whose turn has not come."""

    __slots__ = ("_decide_now", "_inner", "_request_id", "is_wanted")

    def __init__(self, request_id: str, decide: Callable[[], Exchange | PendingDecision]) -> None:
        super().__init__()
        self._request_id = request_id
        self._decide_now: Callable[[], Exchange | PendingDecision] | None = decide
        self._inner: PendingDecision | None = None
        self.is_wanted = True

    def cancel(self, cause: EndCause) -> None:
        if self._inner is not None:
            self._inner.cancel(cause)
        elif self._decide_now is not None:
            self._decide_now = None  # it holds the body
            self.is_wanted = False
            log.info(
                "request abandoned before it was decided",
                request_id=self._request_id,
                outcome=cause.value,
            )

    def decide(self) -> None:
        """Ask the director, and tell of what it says."""
        decide, self._decide_now = self._decide_now, None
        assert decide is not None, "asked once, and not after it was taken back"  # noqa: S101
        try:
            outcome: Exchange | PendingDecision | RequestError = decide()
        except RequestError as error:
            outcome = error
        if isinstance(outcome, PendingDecision):
            self._inner = outcome
            outcome.then(self.settle)
        else:
            self.settle(outcome)

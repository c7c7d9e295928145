"""First tokens that a server's own counter shows, for responses that the EPP does not see.

In lean mode the gateway does not show the first token of any response. But servers count their
first tokens, and compute prompts in the order in which they came. So when the
counter on the metrics page has risen by ``n``, the ``n`` requests sent there first, of those before
their first token, have had it since the last page; they are spread evenly over that time. Requests
that other endpoint pickers report are among them.
"""

from collections.abc import Callable, Iterable
from heapq import merge
from operator import attrgetter

from epp_plugins.predicted_time.endpoint import EndpointModel, InFlight
from epp_plugins.predicted_time.others import OtherPrompt

_KEEP = 0.98
"""Factor on the weight of older prompts in the share that is this process's own."""
_sent_at = attrgetter("sent_at")
_SLACK = 8.0
"""Prompts of others that are not noticed, as pages are late."""


class CountedTokens:
    """The counter of one server.

    Args:
        endpoint: Where its requests are.
    """

    __slots__ = (
        "_carried",
        "_counted",
        "_credit",
        "_endpoint",
        "_page_at",
        "_prompts",
        "_sent",
        "_told",
    )

    def __init__(self, endpoint: EndpointModel) -> None:
        self._endpoint = endpoint
        self._prompts: int | None = None
        self._page_at = 0.0
        self._told = 0
        """First tokens since the page that other signals have told."""
        self._carried = 0
        """Those that the last page should have counted, but did not."""
        self._sent = self._counted = 0.0
        """Requests sent from here, and prompts counted; older ones weigh less."""
        self._credit = 0.0

    @property
    def is_known(self) -> bool:
        """Whether the server counts its prompts at all."""
        return bool(self._prompts)

    def told(self) -> None:
        """Note a first token that another signal has told."""
        self._told += 1

    def sent(self) -> None:
        """Note a request that is sent to the server."""
        self._sent += 1.0

    def page(
        self, prompts: int, requested_at: float, first_token: Callable[[InFlight, float], None]
    ) -> None:
        """Pass the requests that have had their first token since the last page.

        Args:
            prompts: The counter.
            requested_at: When the page was requested.
            first_token: Gets each of the requests, and when its first token came.
        """
        before, self._prompts = self._prompts, prompts
        since, self._page_at = self._page_at, requested_at
        told, self._told = self._told, 0
        if before is None or prompts < before:  # first page, or the server has restarted
            self._carried = 0
            return
        new = prompts - before
        if not new:
            self._carried = told
            return
        keep = _KEEP ** min(new, 100)
        self._sent *= keep
        self._counted = self._counted * keep + new
        mine = self._mine(new)
        expected = told + self._carried
        self._carried = min(told, max(0, expected - mine))
        self._pass(mine - expected, since, requested_at, first_token)

    def _mine(self, new: int) -> int:
        """Return how many of ``new`` prompts were sent from here, by the shares of the past."""
        share = (self._sent + _SLACK) / self._counted
        if share >= 1.0:
            self._credit = 0.0
            return new
        self._credit += new * share
        mine = int(self._credit)
        self._credit -= mine
        return mine

    def _pass(
        self,
        count: int,
        since: float,
        until: float,
        first_token: Callable[[InFlight, float], None],
    ) -> None:
        begun = self._oldest(count, until)
        part, left = 0.5, len(begun)
        at = since
        for request in begun:
            at = max(at, request.sent_at)
            if until > at:
                at += (
                    (until - at) * part / left if part < 1.0 else (until - at) * 2 / (2 * left + 1)
                )
            part = 1.0
            left -= 1
            if isinstance(request, InFlight):
                first_token(request, at)
            else:
                self._endpoint.counted(request, at)

    def _oldest(self, count: int, until: float) -> list[InFlight | OtherPrompt]:
        """Return the oldest prompts without a first token that were sent until then."""
        begun: list[InFlight | OtherPrompt] = []
        prompts: Iterable[InFlight | OtherPrompt] = self._endpoint.pending
        if self._endpoint.others.pending:
            prompts = merge(prompts, self._endpoint.others.waiting, key=_sent_at)
        for each in prompts:
            if len(begun) >= count or each.sent_at > until:
                break
            begun.append(each)
        return begun

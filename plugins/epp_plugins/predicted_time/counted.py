"""First tokens that a server's own counter shows, for responses that the EPP does not see.

In lean mode the gateway does not show the first token of any response. But servers count their
first tokens, and compute prompts in the order in which they arrive. So when the counter on the
metrics page has risen by ``n``, the ``n`` oldest requests without a first token have got it since
the last page; their first tokens are spread evenly over that time. The requests that other endpoint
pickers report are included.
"""

from collections.abc import Callable, Iterable
from heapq import merge
from operator import attrgetter

from epp_plugins.predicted_time.endpoint import EndpointModel, PredictedRequest
from epp_plugins.predicted_time.others import OtherPrompt

_KEEP = 0.98
"""Factor on the weight of older prompts in the share of prompts that this process sent."""
_sent_at = attrgetter("sent_at")
_MOST_UNSEEN = 8
"""After so many responses in a row whose first token was not seen, none is expected to be."""
_SLACK = 8.0
"""Unreported prompts of others that are tolerated, because pages are late."""


class CountedTokens:
    """Follows the counter of one server.

    Args:
        endpoint: The requests of that server.
    """

    __slots__ = (
        "_carried",
        "_counted",
        "_credit",
        "_endpoint",
        "_page_at",
        "_prompts",
        "_reported",
        "_sent",
        "_unseen",
    )

    def __init__(self, endpoint: EndpointModel) -> None:
        self._endpoint = endpoint
        self._prompts: int | None = None
        self._page_at = 0.0
        self._reported = 0
        """First tokens since the last page that other signals have reported."""
        self._carried = 0
        """First tokens that the last page should have counted, but did not."""
        self._sent = self._counted = 0.0
        """Requests sent from here, and prompts counted; older ones weigh less."""
        self._credit = 0.0
        self._unseen = 0
        """Responses in a row that have ended, and whose first token was not seen."""

    @property
    def sees_none(self) -> bool:
        """Whether first tokens are neither counted by the server nor seen in responses."""
        return self._unseen >= _MOST_UNSEEN and not self._prompts

    def seen(self) -> None:
        """Note that the first token of a response has been seen."""
        self._unseen = 0

    def unseen(self) -> None:
        """Count a whole response whose first token has not been seen."""
        self._unseen += 1
        self._reported += 1  # it came after the last page, so the next one will count it

    def reported(self) -> None:
        """Count a first token that another signal has reported."""
        self._reported += 1

    def sent(self) -> None:
        """Count a request that is sent to the server."""
        self._sent += 1.0

    def page(
        self,
        prompts: int,
        requested_at: float,
        first_token: Callable[[PredictedRequest, float], None],
    ) -> None:
        """Report the requests that have got their first token since the last page.

        Args:
            prompts: Value of the counter.
            requested_at: When the page was requested.
            first_token: Called with each of these requests of this process, and the time of its
                first token.
        """
        before, self._prompts = self._prompts, prompts
        since, self._page_at = self._page_at, requested_at
        reported, self._reported = self._reported, 0
        if before is None or prompts < before:  # first page, or the server has restarted
            self._carried = 0
            return
        new = prompts - before
        if not new:
            self._carried = reported
            return
        keep = _KEEP ** min(new, 100)
        self._sent *= keep
        self._counted = self._counted * keep + new
        mine = self._mine(new)
        expected = reported + self._carried
        self._carried = min(reported, max(0, expected - mine))
        self._pass(mine - expected, since, requested_at, first_token)

    def _mine(self, new: int) -> int:
        """Estimate how many of ``new`` prompts were sent from here, by their earlier share."""
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
        first_token: Callable[[PredictedRequest, float], None],
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
            if isinstance(request, PredictedRequest):
                first_token(request, at)
            else:
                self._endpoint.counted(request, at)

    def _oldest(self, count: int, until: float) -> list[PredictedRequest | OtherPrompt]:
        """Return the oldest prompts without a first token, at most ``count``, sent by ``until``."""
        begun: list[PredictedRequest | OtherPrompt] = []
        prompts: Iterable[PredictedRequest | OtherPrompt] = self._endpoint.pending
        if self._endpoint.others.pending:
            prompts = merge(prompts, self._endpoint.others.waiting, key=_sent_at)
        for each in prompts:
            if len(begun) >= count or each.sent_at > until:
                break
            begun.append(each)
        return begun

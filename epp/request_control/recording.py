"""The interface by which the request path records decisions; :mod:`epp.admin` implements it.

A request is recorded in one step: its inputs before its endpoints are reserved, the choice right
after. Its outcome follows at its end. The path passes references to what it has computed anyway;
records for readers are made when they are read.
"""

from collections.abc import Sequence
from typing import Protocol

from epp.request_control.errors import RequestError
from epp.request_control.plugins import EndCause
from epp.request_control.routed_request import RoutedRequest
from epp.scheduling import Endpoint, LLMRequest, ProfileResult


class DecisionRecorder(Protocol):
    """Records decisions, refusals and outcomes."""

    def inputs(self, candidates: Sequence[Endpoint], now: float) -> object | None:
        """Return the inputs of a decision; None if it is not in the sample.

        Args:
            candidates: The endpoints, none of them reserved yet.
            now: The time, in seconds of the clock of endpoint loads.
        """

    def decided(
        self, routed: RoutedRequest, inputs: object, shadows: Sequence[ProfileResult]
    ) -> None:
        """Record the decision of ``routed``, and set its record.

        Args:
            routed: The request.
            inputs: The result of :meth:`inputs`.
            shadows: The results of the shadow profiles.
        """

    def ended(self, routed: RoutedRequest, cause: EndCause, now: float) -> None:
        """Record the outcome of ``routed``, which has a record."""

    def refused(
        self,
        error: RequestError,
        request_id: str,
        request: LLMRequest | None,
        received_at: float,
        candidates: Sequence[Endpoint],
        *,
        path: str,
    ) -> None:
        """Record a request that this EPP answers with ``error``.

        Args:
            error: The error; its cause says what filters removed.
            request_id: Id of the HTTP request.
            request: The request; None if it could not be parsed.
            received_at: When its headers arrived, in seconds of the clock.
            candidates: The endpoints of the last choice; empty if none was tried.
            path: Its path, with the query.
        """

    def abandoned(self, request: LLMRequest, cause: EndCause, received_at: float) -> None:
        """Record a request whose client left before the decision."""

    def abandoned_early(
        self, request_id: str, path: str, cause: EndCause, received_at: float
    ) -> None:
        """Record a request whose client left before its body was complete."""

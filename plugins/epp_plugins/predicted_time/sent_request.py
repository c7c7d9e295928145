"""Passes what the gateway reports about one sent request to the model."""

from collections.abc import Callable

from epp.request_control.plugins import EndCause, ResponseHead, ResponseSource
from epp.scheduling import Endpoint
from epp_plugins.predicted_time.endpoint import PredictedRequest
from epp_plugins.predicted_time.forecast import RequestForecast
from epp_plugins.predicted_time.tracked import TrackedEndpoint

_WHOLE = frozenset({EndCause.COMPLETED, EndCause.ENDED})
_ERROR = 400
_SERVER_ERROR = 500
_UNREACHABLE = frozenset({502, 504})
"""Statuses with which a server responds that could not reach the one that computes the prompt."""


class SentRequest:
    """A request that was sent and that the model counts as in flight.

    Args:
        tracked: The endpoint to which it was sent.
        forecast: Its predictions.
        now: Seconds of the model's clock.
        serves_response: Whether the endpoint that computes the prompt also sends the response.
    """

    __slots__ = ("_forecast", "is_ok", "request", "serves_response", "tracked")

    def __init__(
        self,
        tracked: TrackedEndpoint,
        forecast: RequestForecast,
        now: float,
        *,
        serves_response: bool,
    ) -> None:
        self.tracked = tracked
        self._forecast = forecast
        self.request: PredictedRequest = tracked.sent(
            forecast.tokens_of(tracked.endpoint),
            now,
            total_tokens=forecast.total_tokens,
            target_model=forecast.target_model,
        )
        self.request.decodes_here = serves_response
        self.serves_response = serves_response
        self.is_ok = False
        """Whether the status of its response is a success."""

    def served_by(
        self,
        endpoint: Endpoint,
        find: Callable[[Endpoint], TrackedEndpoint | None],
        now: float,
        *,
        has_failed: bool,
    ) -> None:
        """Record which endpoint responds, and move the request if it is another one.

        Nothing is learned from the first token of the other one, because it is not known when the
        gateway sent the request there.

        Args:
            endpoint: The endpoint that responds.
            find: Returns the tracked endpoint; None if it is not tracked.
            now: Seconds of the model's clock.
            has_failed: Whether the first endpoint has failed if another one responds.
        """
        if endpoint is self.tracked.endpoint or not self.serves_response:
            return
        other = find(endpoint)
        if other is None:
            return
        model = self.tracked.model
        (model.failed if has_failed else model.ended)(self.request, now)
        forecast, self.tracked = self._forecast, other
        self.request = other.sent(
            forecast.tokens_of(endpoint), now, target_model=forecast.target_model
        )
        self.request.is_timed = False

    def answered(self, head: ResponseHead, now: float) -> None:
        """Record the head of the response."""
        model, status = self.tracked.model, head.status
        if status >= _SERVER_ERROR and self._is_servers_failure(head):
            model.failed(self.request, now)
        elif status >= _ERROR or not status:
            model.ended(self.request, now)
        else:
            self.is_ok = True

    def _is_servers_failure(self, head: ResponseHead) -> bool:
        """Return whether it is the server of the prompt that a 5xx speaks against.

        An error of a server that decodes says nothing about the one that computes the prompt,
        unless it could not reach that one.
        """
        if head.source is ResponseSource.GATEWAY:
            return False
        if self.serves_response:
            return True
        from_gateway = head.source is ResponseSource.GATEWAY_FOR_SERVER
        return head.status in _UNREACHABLE and not from_gateway

    def first_token(self, now: float) -> None:
        """Record the first token; does nothing the second time."""
        self.tracked.counted.seen()
        if self.request.is_pending:
            self.tracked.counted.reported()
            self.tracked.model.first_token(self.request, now)

    def ended(self, cause: EndCause, now: float) -> None:
        """Record the end of the request."""
        if self.is_ok and cause in _WHOLE and self.request.is_pending:
            self.tracked.counted.unseen()
        self.tracked.model.ended(self.request, now)

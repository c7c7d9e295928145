"""Connects one endpoint of the pool to the model."""

from epp.scheduling import Endpoint
from epp_plugins.predicted_time.counted import CountedTokens
from epp_plugins.predicted_time.endpoint import PredictedRequest
from epp_plugins.predicted_time.fleet import FleetModel
from epp_plugins.predicted_time.others import Part


class TrackedEndpoint:
    """Passes the scrapes of one endpoint, and the requests sent to it, to the model.

    It belongs to the model, not to an instance of the producer, so that a page counts once while a
    reload keeps the previous instance.

    Args:
        endpoint: The endpoint.
        model: Model of the fleet.
        owner: The producer instance that releases this object.
    """

    __slots__ = ("__weakref__", "_endpoint_model", "counted", "endpoint", "model", "owner")

    def __init__(self, endpoint: Endpoint, model: FleetModel, owner: object) -> None:
        self.endpoint = endpoint
        self.model = model
        self._endpoint_model = model.endpoint(endpoint.name)
        self.counted = CountedTokens(self._endpoint_model)
        self.owner = owner
        endpoint.load.observers.append(self.scraped)

    def sent(
        self,
        uncached_tokens: float,
        now: float,
        *,
        total_tokens: float = 0.0,
        target_model: str = "",
    ) -> PredictedRequest:
        """Add a request that is sent to the endpoint now, see :meth:`FleetModel.sent`."""
        self.counted.sent()
        return self.model.sent(
            self.endpoint.name,
            uncached_tokens,
            now,
            total_tokens=total_tokens,
            target_model=target_model,
        )

    def scraped(self) -> None:
        """Learn from the endpoint's new metrics."""
        metrics, model = self.endpoint.metrics, self.model
        if metrics.requested_at is None:
            return
        if len(self._endpoint_model.requests) > self.endpoint.load.own_in_flight:
            self._end_lost(metrics.requested_at)
        self.counted.page(metrics.prompts, metrics.requested_at, model.first_token)
        if self.counted.sees_none:
            self._endpoint_model.assume_first_tokens(
                metrics.requested_at, is_serial=model.is_serial
            )
        if metrics.max_adapters:
            in_use = metrics.active_adapters | metrics.waiting_adapters
            model.adapters_in_use(self.endpoint.name, metrics.max_adapters, in_use)
        model.scraped(
            self.endpoint.name,
            waiting=metrics.waiting_requests,
            running=metrics.running_requests,
            kv_usage=self.endpoint.load.kv_cache_usage,
            now=metrics.requested_at,
        )

    def _end_lost(self, now: float) -> None:
        """End requests whose end was not passed on, such as those of a producer that was disabled.

        The endpoint's load has the number of those in flight. It lacks requests whose response has
        begun at another endpoint, the one that decodes.
        """
        requests = [each for each in self._endpoint_model.requests if each.decodes_here]
        lost = len(requests) - self.endpoint.load.own_in_flight
        for request in requests[: max(0, lost)]:
            self.model.ended(request, now)

    def part(self, now: float) -> Part | None:
        """Return the requests in flight here for other endpoint pickers; None if there are none."""
        return self._endpoint_model.part(now)

    def share(self, picker: str, part: Part | None, now: float) -> None:
        """Replace another endpoint picker's requests in flight here; None if it has none."""
        sent, begun = self._endpoint_model.share(picker, part, now)
        for _ in range(sent):
            self.counted.sent()
        for _ in range(begun):
            self.counted.reported()

    def has_requests_in(self, model: FleetModel) -> bool:
        """Return whether requests from here are in flight at the endpoint, according to a model."""
        return self.model is model and bool(self._endpoint_model.requests)

    def resume(self, owner: object) -> None:
        """Continue after :meth:`release` with an endpoint that has come back, for a new owner."""
        self.owner = owner
        self.model.resume(self._endpoint_model)
        self.endpoint.load.observers.append(self.scraped)

    def release(self) -> None:
        """Stop observing the endpoint's metrics."""
        observers = self.endpoint.load.observers
        if self.scraped in observers:
            observers.remove(self.scraped)

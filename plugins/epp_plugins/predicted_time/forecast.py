"""The model's predictions for one request."""

from collections.abc import Mapping, Sequence
from heapq import nsmallest

from epp.scheduling import Endpoint
from epp_plugins.predicted_time.cost_table import CostTable, Prediction
from epp_plugins.predicted_time.fleet import NO_TOKENS, FleetModel

_EXPLAINED = 4
"""Maximum endpoints in an explanation."""


class RequestForecast:
    """The model at the time of one request's decision, with the request's tokens.

    It also explains the decision to readers (:meth:`sentences`).

    Args:
        model: Model of the fleet.
        now: Seconds of the model's clock.
        total_tokens: The request's tokens at an endpoint that has cached nothing.
        tokens: Its uncached tokens by the names of endpoints that have cached a part.
        first_at: When its first decision was attempted; None for now.
        target_model: Model or LoRA adapter that the request names; "" if unknown.
    """

    __slots__ = (
        "_table",
        "compared_tokens",
        "first_at",
        "model",
        "now",
        "target_model",
        "tokens",
        "total_tokens",
    )

    def __init__(
        self,
        model: FleetModel,
        now: float,
        total_tokens: float,
        tokens: Mapping[str, float] = NO_TOKENS,
        *,
        first_at: float | None = None,
        target_model: str = "",
    ) -> None:
        self.model = model
        self.now = now
        self.first_at = now if first_at is None else first_at
        self.total_tokens = total_tokens
        self.tokens = tokens
        self.compared_tokens = tokens
        """Uncached tokens by which endpoints are compared, see :class:`HotPrefixes`."""
        self.target_model = target_model
        self._table: CostTable | None = None

    @property
    def held_seconds(self) -> float:
        """How long the request has been held."""
        return self.now - self.first_at

    @property
    def is_trusted(self) -> bool:
        """Whether predictions are good enough to choose an endpoint by."""
        return self.model.trust.is_given

    def tokens_of(self, endpoint: Endpoint) -> float:
        """Return the request's uncached tokens at ``endpoint``."""
        return self.tokens.get(endpoint.name, self.total_tokens)

    def costs(self, endpoints: Sequence[Endpoint]) -> list[float]:
        """Return N costs in seconds, in the order of ``endpoints``; inf where one is excluded."""
        keys = [endpoint.name for endpoint in endpoints]
        self._table = table = self.model.table(
            keys, self.total_tokens, self.now, self.compared_tokens, self.target_model
        )
        return table.costs()

    def predictions(self) -> list[Prediction]:
        """Return the costs of the last call of :meth:`costs` with their parts; empty before it."""
        if self._table is None:
            return []
        endpoints = self.model.endpoints
        slowness = {
            key: self.model.slowness(endpoints[key]) for key in self._table.keys if key in endpoints
        }
        return self._table.predictions(self.compared_tokens, self.total_tokens, slowness)

    def least_service(self) -> float:
        """Return the shortest service time of the request over all endpoints, in seconds."""
        return self.model.least_service(self.total_tokens, self.tokens)

    def sentences(self) -> Sequence[str]:
        """Return the predictions for the endpoints of least cost in words, the best first."""
        if not self.is_trusted:
            return ("predicted times are not trusted yet: the scores of the default profile apply",)
        best = nsmallest(_EXPLAINED, self.predictions(), key=lambda each: each.cost)
        return [each.sentence() for each in best]

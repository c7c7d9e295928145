"""What the model says about one request."""

from collections.abc import Mapping, Sequence

from epp.scheduling import Endpoint
from epp_plugins.predicted_time.fleet import NO_TOKENS, FleetModel
from epp_plugins.predicted_time.prediction import Prediction


class RequestForecast:
    """The model at the time of one request's decision, with the request's tokens.

    Args:
        model: Of the fleet.
        now: Seconds of the model's clock.
        total_tokens: The request's tokens at an endpoint that has cached nothing.
        tokens: Its uncached tokens by the names of endpoints that have cached a part.
    """

    __slots__ = ("model", "now", "tokens", "total_tokens")

    def __init__(
        self,
        model: FleetModel,
        now: float,
        total_tokens: float,
        tokens: Mapping[str, float] = NO_TOKENS,
    ) -> None:
        self.model = model
        self.now = now
        self.total_tokens = total_tokens
        self.tokens = tokens

    @property
    def is_trusted(self) -> bool:
        """Whether predictions are good enough to choose by."""
        return self.model.trust.is_given

    def tokens_of(self, endpoint: Endpoint) -> float:
        """Return the request's uncached tokens at ``endpoint``."""
        return self.tokens.get(endpoint.name, self.total_tokens)

    def costs(self, endpoints: Sequence[Endpoint]) -> list[float]:
        """Return N costs in seconds, in the order of ``endpoints``; inf where one is excluded."""
        keys = [endpoint.name for endpoint in endpoints]
        return self.model.costs(keys, self.total_tokens, self.now, self.tokens)

    def predict(self, endpoints: Sequence[Endpoint]) -> list[Prediction]:
        """Return the parts of N costs, in the order of ``endpoints``."""
        keys = [endpoint.name for endpoint in endpoints]
        return self.model.predict(keys, self.total_tokens, self.now, self.tokens)

    def least_service(self) -> float:
        """Return the least service time of the request over all endpoints, in seconds."""
        return self.model.least_service(self.total_tokens, self.tokens)

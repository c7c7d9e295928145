"""An exchange with a simulated server, for tests."""

from collections.abc import Callable

from epp.lab.results import ServerAccount
from epp.lab.simulation.prompts import SimulatedRequest
from epp.lab.simulation.routing import Tokens
from epp.lab.simulation.servers import SimulatedExchange


class ListeningExchange(SimulatedExchange):
    """Calls a function at the first token, and ignores all else."""

    def __init__(
        self, request: SimulatedRequest, first_token: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(request, request.traffic.output_tokens)
        self._first_token = first_token

    def head(self, status: int) -> None:
        """Ignore it."""

    def first_token(self) -> None:
        self._first_token()

    def end(self, tokens: Tokens, account: ServerAccount) -> None:
        """Ignore it."""

    def cut(self) -> None:
        """Ignore it."""

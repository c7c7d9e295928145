"""The simulated gateway: asks a router, sends requests as Envoy does, and records the outcomes.

It models Envoy's retries on refused connections, hedging, Envoy's 503, and the client's timeout.
The network takes the same time in both directions, all of it between client and gateway.
"""

from collections.abc import Callable, Iterator, Sequence
from math import inf

from epp.lab.results import EppChoice, ErrorKind, OracleChoice, Record, ServerAccount
from epp.lab.simulation.prompts import SimulatedRequest
from epp.lab.simulation.routing import RETRIES, End, Outcome, Route, Router, RouterRefusal, Tokens
from epp.lab.simulation.servers import (
    UNAVAILABLE,
    ConnectionRefusedByServerError,
    SimulatedExchange,
    SimulatedServer,
)
from epp.lab.simulation.virtual_loop import VirtualLoop, VirtualTimer

_ERROR = 400


class _Attempt(SimulatedExchange):
    """One try of a request, at one server."""

    __slots__ = ("_client", "is_hedge", "server")

    def __init__(
        self,
        client: "ClientRequest",
        server: SimulatedServer,
        prefiller: SimulatedServer | None,
        *,
        is_hedge: bool,
    ) -> None:
        request = client.request
        super().__init__(request, request.traffic.output_tokens, prefiller)
        self._client = client
        self.server = server
        self.is_hedge = is_hedge

    def head(self, status: int) -> None:
        self._client.head(self, status)

    def first_token(self) -> None:
        self._client.first_token()

    def end(self, tokens: Tokens, account: ServerAccount) -> None:
        self._client.end(tokens, account)

    def cut(self) -> None:
        self._client.cut(self)

    def abort(self) -> None:
        """End the attempt: the client has left, or another server has responded."""
        self.server.abort(self)


class ClientRequest:
    """One request from its arrival to its record.

    Args:
        request: The request.
        router: Chooses the server.
        servers: All servers, by index.
        loop: The virtual loop.
        began_at: Time of the beginning of the run, from which the record counts.
        network_seconds: Time of the network in each direction.
        has_oracle: Whether to record the best choice.
        finished: Gets the record and the headers of the response that the client keeps.
    """

    __slots__ = (
        "_account",
        "_arrived_at",
        "_attempts",
        "_began_at",
        "_cancel",
        "_choice",
        "_finished",
        "_first_token_at",
        "_has_oracle",
        "_hedge_timer",
        "_kept_headers",
        "_loop",
        "_network_seconds",
        "_oracle",
        "_request",
        "_route",
        "_router",
        "_server",
        "_servers",
        "_status",
        "_untried",
    )

    def __init__(
        self,
        request: SimulatedRequest,
        router: Router,
        servers: Sequence[SimulatedServer],
        *,
        loop: VirtualLoop,
        began_at: float,
        network_seconds: float,
        has_oracle: bool,
        finished: "Callable[[ClientRequest, Record], None]",
    ) -> None:
        self._request = request
        self._router = router
        self._servers = servers
        self._loop = loop
        self._finished: Callable[[ClientRequest, Record], None] | None = finished
        self._began_at = began_at
        self._network_seconds = network_seconds
        self._has_oracle = has_oracle
        self._arrived_at = loop.time() - began_at
        self._first_token_at: float | None = None
        self._status = 0
        self._account: ServerAccount | None = None
        self._choice: EppChoice | None = None
        self._oracle: OracleChoice | None = None
        self._server: SimulatedServer | None = None
        self._attempts: list[_Attempt] = []
        self._untried: Iterator[int] = iter(())
        self._hedge_timer: VirtualTimer | None = None
        self._route: Route | None = None
        self._cancel: Callable[[], None] | None = None
        self._kept_headers: dict[str, str] = {}

    @property
    def request(self) -> SimulatedRequest:
        """The request."""
        return self._request

    @property
    def kept_headers(self) -> dict[str, str]:
        """Headers of the response that a client sends back in its session."""
        return self._kept_headers

    def send(self) -> None:
        """Send the request to the gateway."""
        if self._network_seconds:
            at = self._loop.time() + self._network_seconds
            self._cancel = self._loop.set_timer(at, self._reach_gateway).cancel
        else:
            self._reach_gateway()

    def time_out(self) -> None:
        """End the request because its client gives up."""
        if self._cancel is not None:
            self._cancel()
        self._abort()
        self._close(End.CLIENT_LEFT, None, ErrorKind.TIMEOUT, "the client gave up")

    def head(self, attempt: _Attempt, status: int) -> None:
        """Handle the head of a response; the attempt becomes the only one."""
        route = self._route
        assert route is not None  # noqa: S101 - the server has the request from it
        self._stop_hedging()
        if len(self._attempts) > 1:
            for other in self._attempts:
                if other is not attempt:
                    other.abort()
            self._attempts = [attempt]
            self._server = attempt.server
        if attempt.is_hedge:
            route.served_by(attempt.server.index)
        self._status = status
        route.on_revoked = None
        self._kept_headers.update(route.head(status))
        if status >= _ERROR:
            self._close(End.COMPLETED, None, ErrorKind.STATUS, "the server answered with an error")

    def first_token(self) -> None:
        """Record the first token, and report it to the route."""
        self._first_token_at = self._loop.time() - self._began_at + self._network_seconds
        if self._route is not None:
            self._route.first_chunk()

    def end(self, tokens: Tokens, account: ServerAccount) -> None:
        """Record the end of the response."""
        self._account = account
        self._close(End.COMPLETED, tokens)

    def cut(self, attempt: _Attempt) -> None:
        """Handle the end of a connection before or during the response."""
        self._attempts.remove(attempt)
        if not self._attempts:
            self._close(End.CUT, None, ErrorKind.RESET, "the server closed the connection")

    def _reach_gateway(self) -> None:
        self._cancel = None
        self._cancel = self._router.route(self._request, self._routed)

    def _routed(self, outcome: Outcome) -> None:
        self._cancel = None
        if isinstance(outcome, RouterRefusal):
            self._refused(outcome)
            return
        self._route = outcome
        self._choice = outcome.choice
        if self._has_oracle:
            self._oracle = self._best_choice()
        outcome.on_revoked = self._revoked
        self._untried = iter(outcome.servers[: 1 + RETRIES])
        if not self._try_next():
            self._server = None
            self._status = UNAVAILABLE
            outcome.head(UNAVAILABLE, from_gateway=True)
            self._close(End.GATEWAY, None, ErrorKind.STATUS, "no server could be reached")
        elif outcome.hedge_seconds is not None and not self._status:
            self._await_hedge(outcome.hedge_seconds)

    def _try_next(self, *, is_hedge: bool = False) -> bool:
        """Send the request to the next server that accepts the connection, if there is one."""
        route = self._route
        assert route is not None  # noqa: S101 - it names the servers
        prefiller = None if route.prefiller is None else self._servers[route.prefiller]
        for index in self._untried:
            server = self._servers[index]
            attempt = _Attempt(self, server, prefiller, is_hedge=is_hedge)
            self._attempts.append(attempt)
            if not is_hedge:
                self._server = server
                if index != route.servers[0]:
                    route.served_by(index)
            try:
                server.submit(attempt)
            except ConnectionRefusedByServerError:
                self._attempts.remove(attempt)
            else:
                return True
        return False

    def _await_hedge(self, seconds: float) -> None:
        self._hedge_timer = self._loop.set_timer(self._loop.time() + seconds, self._hedge, seconds)

    def _hedge(self, seconds: float) -> None:
        """Try a further server, because no response has begun."""
        if self._try_next(is_hedge=True) and not self._status:
            self._await_hedge(seconds)

    def _stop_hedging(self) -> None:
        if self._hedge_timer is not None:
            self._hedge_timer.cancel()
            self._hedge_timer = None

    def _best_choice(self) -> OracleChoice | None:
        now = self._loop.time()
        waited = now - self._began_at - self._arrived_at + self._network_seconds
        seconds, best = min(
            (server.forecast(self._request, now).first_token, server.index)
            for server in self._servers
        )
        if seconds == inf:
            return None
        return OracleChoice(worker=self._servers[best].name, ttft_seconds=waited + seconds)

    def _refused(self, refusal: RouterRefusal) -> None:
        self._status = refusal.status
        self._record(None, ErrorKind.STATUS, refusal.reason)

    def _revoked(self, refusal: RouterRefusal) -> None:
        self._abort()
        self._route = None  # the router has ended it
        self._refused(refusal)

    def _abort(self) -> None:
        self._stop_hedging()
        attempts, self._attempts = self._attempts, []
        for attempt in attempts:
            attempt.abort()

    def _close(
        self, end: End, tokens: Tokens | None, error: ErrorKind | None = None, message: str = ""
    ) -> None:
        route, self._route = self._route, None
        if route is not None:
            route.end(end, tokens)
        self._record(tokens, error, message)

    def _record(self, tokens: Tokens | None, error: ErrorKind | None, message: str) -> None:
        finished, self._finished = self._finished, None
        if finished is None:
            return
        self._attempts = []  # they refer to this object
        traffic = self._request.traffic
        delay = 0.0 if error is ErrorKind.TIMEOUT else self._network_seconds
        now, first = self._loop.time() - self._began_at + delay, self._first_token_at
        record = Record(
            index=traffic.index,
            scheduled_at=self._arrived_at,
            started_at=self._arrived_at,
            finished_at=now,
            status=self._status,
            served_by="" if self._server is None else self._server.name,
            first_byte_at=first,
            token_times=() if first is None else (first, now) if tokens else (first,),
            has_all_token_times=False,
            request_id=self._request.id,
            tenant=traffic.tenant,
            adapter=traffic.adapter,
            session=traffic.session,
            objective=traffic.objective,
            server=self._account,
            epp=self._choice,
            oracle=self._oracle,
            output_tokens=0 if tokens is None else tokens.output,
            prompt_tokens=traffic.prompt_tokens,
            cached_tokens=0 if self._account is None else self._account.cached_tokens or 0,
            error=error,
            message=message,
        )
        if delay:
            self._loop.set_timer(self._loop.time() + delay, finished, self, record)
        else:
            finished(self, record)

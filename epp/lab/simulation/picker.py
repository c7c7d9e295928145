"""The endpoint picker itself as the router of a simulation.

A :class:`~epp.pool_runtime.PoolRuntime` is built as in ``epp serve``, on the virtual clock.
Requests enter at the director, and the calls that an ext_proc stream makes on a routed request are
made here, as far as the gateway's mode lets the endpoint picker see the response.
"""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial

from epp.admin import ExplainSettings
from epp.building import InstalledPlugins
from epp.config import LoadedConfig
from epp.ext_proc.response_body import is_worth_requesting
from epp.lab.envoy import Mode
from epp.lab.results import EppChoice
from epp.lab.simulation.prompts import SimulatedRequest
from epp.lab.simulation.routing import (
    RETRIES,
    Cancel,
    End,
    Receive,
    Refusal,
    Route,
    Router,
    Tokens,
)
from epp.lab.simulation.scraping import page_opener, scraper_of
from epp.lab.simulation.servers import SimulatedServer
from epp.observability import Metrics
from epp.parsing.plugins import Usage
from epp.pool_runtime import PoolRuntime
from epp.request_control import (
    PREFIX_MATCHES,
    BodyLanes,
    EndCause,
    PendingDecision,
    RequestError,
    RoutedRequest,
    fallbacks,
)
from epp.request_control.routed_request import AnsweredBy
from epp.settings import ServeSettings

_START_STEPS, _START_STEP_SECONDS = 100, 0.01
"""A run begins when all servers have been scraped, or after a second."""
_EVICTED = Refusal(429, "evicted by flow control")
_RESPONSE_HEADERS = {"content-type": "text/event-stream; charset=utf-8"}
_CAUSES: Mapping[End, EndCause] = {
    End.COMPLETED: EndCause.COMPLETED,
    End.CUT: EndCause.CLIENT_DISCONNECT,
    End.GATEWAY: EndCause.COMPLETED,
    End.CLIENT_LEFT: EndCause.CLIENT_DISCONNECT,
}


class PickerRoute(Route):
    """A decision of the endpoint picker."""

    __slots__ = ("_began_at", "_picker", "_routed", "_sees_body")

    def __init__(
        self, picker: "PickerRouter", routed: RoutedRequest, servers: Sequence[int]
    ) -> None:
        super().__init__(servers)
        self._picker = picker
        self._routed = routed
        self._began_at: float | None = None
        self._sees_body = False
        self.choice = _choice(routed)
        if routed.in_flight is not None:
            routed.on_revoked = self._revoke

    def served_by(self, server: int) -> None:
        self._routed.served_by(self._picker.addresses[server])

    def head(self, status: int, *, from_gateway: bool = False) -> Mapping[str, str]:
        routed, picker = self._routed, self._picker
        if from_gateway:
            routed.answered_by = AnsweredBy.GATEWAY_FOR_SERVER
        mode = picker.mode
        self._sees_body = mode is Mode.FULL_DUPLEX or (
            mode is Mode.ADAPTIVE
            and is_worth_requesting(routed, routed.request.request_id, picker.sample_usage)
        )
        given = routed.response_started(
            status,
            _RESPONSE_HEADERS if routed.wants_response_headers else None,
            routed.endpoint.address,
        )
        return {name: value for name, value in given.items() if value is not None}

    def first_chunk(self) -> None:
        self._began_at = self._picker.time()
        if self._sees_body:
            self._routed.body_began()

    def end(self, end: End, tokens: Tokens | None) -> None:
        routed = self._routed
        cause = _CAUSES[end]
        if self._sees_body and self._began_at is not None:
            reads = tokens is not None and routed.find_reader is not None
            usage = Usage(tokens.prompt, tokens.output, tokens.cached) if tokens and reads else None
            routed.answer_seen(
                usage,
                body_bytes=1 if tokens is None else tokens.output,
                began_at=self._began_at,
                ended_at=self._picker.time(),
                is_whole=tokens is not None,
            )
        elif not self._sees_body and routed.status is not None:
            cause = EndCause.ENDED
        routed.close(cause)

    def _revoke(self) -> None:
        if self.on_revoked is not None:
            self._routed.close(EndCause.EVICTED)
            self.on_revoked(_EVICTED)


class PickerRouter(Router):
    """Lets an endpoint picker choose.

    Args:
        config: Its configuration.
        servers: The pool.
        loop: The virtual loop.
        installed: Installed plugins.
        seed: Seed of its random choices.
        mode: What the gateway shows it of a response.
        scrape_interval_seconds: As ``--refresh-metrics-interval``.

    Raises:
        ConfigError: The configuration is invalid.
    """

    def __init__(
        self,
        config: LoadedConfig,
        servers: Sequence[SimulatedServer],
        loop: asyncio.AbstractEventLoop,
        *,
        installed: InstalledPlugins,
        seed: int,
        mode: Mode = Mode.LEAN,
        scrape_interval_seconds: float = 0.05,
    ) -> None:
        self.mode = mode
        """What the gateway shows of a response."""
        self.addresses = [server.address for server in servers]
        """Addresses of the servers by index."""
        self.time = loop.time
        """The virtual clock."""
        self._loop = loop
        self._index = {server.address: server.index for server in servers}
        by_address = {server.address: server for server in servers}
        settings = ServeSettings(
            config=config,
            allow_experimental_plugins=True,
            endpoints=tuple(f"worker-{each.index:03d}={each.address}" for each in servers),
            refresh_metrics_interval_seconds=scrape_interval_seconds,
            explain=ExplainSettings(explain_decisions=0),
            seed=seed,
        )
        self.sample_usage = settings.ext_proc.sample_usage
        """Share of the responses that are read in adaptive mode."""
        self.runtime = PoolRuntime(
            settings,
            Metrics(),
            installed=installed,
            lanes=BodyLanes(),
            clock=loop.time,
            open_page=page_opener(by_address, loop.time),
            make_scraper=scraper_of(by_address, seed),
        )
        """All that serves the pool."""
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start discovery, scrapes and outlier detection, and wait for the first metrics."""
        self._task = self._loop.create_task(self.runtime.run(), name="endpoint picker")
        store = self.runtime.store
        for _ in range(_START_STEPS):
            await asyncio.sleep(_START_STEP_SECONDS)
            if self._task.done():
                self._task.result()
            if store.synced and all(each.metrics.requested_at for each in store.snapshot):
                return

    async def stop(self) -> None:
        """Stop all tasks and close the plugins; raise what ended one of them early."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self.runtime.close()
        if self._task is not None and not self._task.cancelled():
            self._task.result()

    def route(self, request: SimulatedRequest, receive: Receive) -> Cancel | None:
        try:
            decision = self.runtime.director.handle(
                request_id=request.id,
                headers=request.headers,
                body=request.body(),
                received_at=self._loop.time(),
            )
        except RequestError as error:
            receive(_refusal(error))
            return None
        if isinstance(decision, PendingDecision):
            decision.then(partial(self._decided, receive))
            return partial(decision.cancel, EndCause.CLIENT_DISCONNECT)
        self._decided(receive, decision)
        return None

    def _decided(self, receive: Receive, outcome: RoutedRequest | RequestError) -> None:
        if isinstance(outcome, RequestError):
            receive(_refusal(outcome))
            return
        addresses = outcome.decision.destination.split(",")
        if len(addresses) <= RETRIES:
            addresses += [each.address for each in fallbacks(outcome.decision, RETRIES)]
        route = PickerRoute(self, outcome, [self._index[each] for each in addresses])
        outcome.body_sent()
        receive(route)


def _choice(routed: RoutedRequest) -> EppChoice:
    matches = routed.state.read(PREFIX_MATCHES)
    decision = routed.decision
    name = decision.endpoint.name
    queued = routed.queued
    return EppChoice(
        endpoint=name,
        predicted_cached_tokens=(
            None if matches is None else matches.blocks.get(name, 0) * matches.block_size
        ),
        queue_seconds=None if queued is None else decision.decided_at - decision.received_at,
    )


def _refusal(error: RequestError) -> Refusal:
    return Refusal(error.status, error.drop_reason or error.code)

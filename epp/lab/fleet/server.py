"""One fake vLLM server: an engine with an HTTP interface, counters and fault injection."""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b

from epp.lab.fleet.api import BODIES, COUNT_TOKENS, ApiParser, ApiRequest
from epp.lab.fleet.config import FleetConfig
from epp.lab.fleet.driver import EngineDriver
from epp.lab.fleet.engine import Engine
from epp.lab.fleet.errors import ApiError, PortTakenError
from epp.lab.fleet.exchange import Exchange
from epp.lab.fleet.generation import Counters, Generation
from epp.lab.fleet.http import FakeServerConnection
from epp.lab.fleet.messages_format import count_body
from epp.lab.fleet.metrics_page import CONTENT_TYPE, GARBLED_PAGE, MetricsPage
from epp.lab.fleet.render import RENDER_CHAT, RENDER_COMPLETION, render_body
from epp.lab.fleet.response_formats import error_body, models_body
from epp.lab.fleet.stages import (
    Outcome,
    Stage,
    StageRefusedError,
    forward,
    has_stages,
    rank_of,
    run_stages,
    stage_of,
    stages_header,
)

_BACKLOG = 1024
_PLAIN = b"text/plain; charset=utf-8"


_ACCEPT_TURNS = 4
"""Turns of the event loop after which a connection that was accepted has come."""


@dataclass(slots=True)
class Faults:
    """Injected faults; set a field at any time. `FakeServer.refuse` closes the port."""

    hang: bool = False
    """Accept all requests and never respond."""
    hang_generation: bool = False
    """Accept generation requests and never respond; metrics and the rest work."""
    garbled_metrics: bool = False
    """Respond to `/metrics` with invalid text."""
    error_status: int | None = None
    """Respond to generation requests at once with this status."""
    cut_responses: bool = False
    """Close the connection of generation requests after the head of the response."""
    health_status: int | None = None
    """Respond to `/health` with this status."""
    render_status: int | None = None
    """Respond to render requests with this status."""
    garbled_render: bytes | None = None
    """Respond to render requests with this body."""


class FakeServer:
    """One endpoint of the fleet."""

    def __init__(self, config: FleetConfig, index: int) -> None:
        self.name = f"endpoint-{index}"
        """Name in `x-served-by`."""
        self.host = config.host_of(index)
        """Address it listens on."""
        self.port = config.port_of(index)
        """Port it listens on; 0 until it is started on a free one."""
        self.engine = Engine(config.engine_of(index))
        """The simulated engine."""
        self.counters = Counters()
        """Counters of its requests."""
        self.faults = Faults()
        """Injected faults."""
        self._config = config
        physics = self.engine.config
        self._api = ApiParser(
            model=config.model, adapters=physics.adapters, max_model_len=physics.max_model_len
        )
        self._common_headers = f"server: fake-vllm\r\nx-served-by: {self.name}\r\n".encode()
        self._connections: set[FakeServerConnection] = set()
        self._listener: asyncio.Server | None = None
        self._driver: EngineDriver | None = None
        self._tasks: set[asyncio.Task[Outcome]] = set()
        self._page: MetricsPage | None = None
        self._created = 0
        self._routes: dict[bytes, tuple[bytes, Callable[[Exchange], None]]] = {
            b"/health": (b"GET", self._serve_health),
            b"/metrics": (b"GET", self._serve_metrics),
            b"/v1/models": (b"GET", self._serve_models),
            COUNT_TOKENS: (b"POST", self._serve_count),
            RENDER_CHAT: (b"POST", self._serve_render),
            RENDER_COMPLETION: (b"POST", self._serve_render),
            **dict.fromkeys(BODIES, (b"POST", self._serve_generation)),
        }

    @property
    def address(self) -> str:
        """`host:port`."""
        return f"{self.host}:{self.port}"

    @property
    def listening(self) -> bool:
        """Whether it accepts connections."""
        return self._listener is not None

    @property
    def worst_lag_seconds(self) -> float:
        """Longest delay of an engine step behind its nominal end, see `EngineDriver`."""
        return self._driver.worst_lag_seconds if self._driver is not None else 0.0

    async def start(self) -> None:
        """Listen.

        Raises:
            PortTakenError: the port is in use.
        """
        loop = asyncio.get_running_loop()
        if self._driver is None:
            wall = time.time()
            self._created = int(wall)
            self._driver = EngineDriver(self.engine, loop)
            self._page = MetricsPage(
                self.engine,
                self.counters.stages,
                model=self._config.model,
                created=wall,
                wall_offset=wall - loop.time(),
            )
        try:
            # In two steps, so that the listener can be closed after cancellation in the second.
            self._listener = await loop.create_server(
                self._make_connection,
                self.host,
                self.port,
                backlog=_BACKLOG,
                reuse_address=True,
                start_serving=False,
            )
            await self._listener.start_serving()
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortTakenError(self.name, self.host, self.port) from error
            raise
        self.port = self._listener.sockets[0].getsockname()[1]

    async def refuse(self) -> None:
        """Simulate a crash: close the port and all connections; `start` opens the port again."""
        await self._close_listener()
        self._abort_connections()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for _ in range(_ACCEPT_TURNS):
            await asyncio.sleep(0)  # The transports close in the next turn of the loop.
            self._abort_connections()

    async def close(self) -> None:
        """Stop the server and its engine."""
        await self.refuse()
        if self._driver is not None:
            self._driver.stop()

    async def _close_listener(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()

    def _abort_connections(self) -> None:
        for connection in tuple(self._connections):
            connection.abort()
            # The transport would call it later; the engine's slots must be free at once.
            connection.connection_lost(None)

    def _make_connection(self) -> FakeServerConnection:
        return FakeServerConnection(
            self._handle,
            self._connections,
            common_headers=self._common_headers,
            max_body_bytes=self._config.max_body_bytes,
        )

    def _handle(self, exchange: Exchange) -> None:
        route = self._routes.get(exchange.path)
        if self.faults.hang or (self.faults.hang_generation and exchange.path in BODIES):
            self._hang(exchange)
        elif route is None:
            exchange.respond(404, b'{"detail":"Not Found"}')
        elif route[0] != exchange.method:
            exchange.respond(405, b'{"detail":"Method Not Allowed"}', extra=((b"allow", route[0]),))
        else:
            route[1](exchange)

    def _hang(self, exchange: Exchange) -> None:
        if exchange.path in BODIES:
            self.counters.received += 1
            self.counters.in_flight += 1
            exchange.on_disconnect = self._hung_request_left

    def _hung_request_left(self) -> None:
        self.counters.in_flight -= 1
        self.counters.aborted += 1

    def _serve_health(self, exchange: Exchange) -> None:
        exchange.respond(self.faults.health_status or 200)

    def _serve_metrics(self, exchange: Exchange) -> None:
        self.counters.scrapes += 1
        if self.faults.garbled_metrics or self._page is None:
            exchange.respond(200, GARBLED_PAGE, CONTENT_TYPE)
        else:
            exchange.respond(200, self._page.render(), CONTENT_TYPE)

    def _serve_models(self, exchange: Exchange) -> None:
        api = self._api
        body = models_body(
            api.model, api.adapters, max_model_len=api.max_model_len, created=self._created
        )
        exchange.respond(200, body)

    def _serve_count(self, exchange: Exchange) -> None:
        try:
            request = self._api.parse(exchange.path, exchange.body, self._request_id(exchange))
        except ApiError as error:
            _refuse(exchange, error)
        else:
            exchange.respond(200, count_body(request.generation.prompt_tokens))

    def _serve_render(self, exchange: Exchange) -> None:
        self.counters.rendered += 1
        faults = self.faults
        if faults.render_status is not None:
            exchange.respond(faults.render_status, b"fault injected", _PLAIN)
        elif faults.garbled_render is not None:
            exchange.respond(200, faults.garbled_render)
        else:
            try:
                request_id = self._request_id(exchange)
                body = render_body(exchange.path, exchange.body, self._api.model, request_id)
            except ApiError as error:
                _refuse(exchange, error)
            else:
                exchange.respond(200, body)

    def _serve_generation(self, exchange: Exchange) -> None:
        self.counters.received += 1
        status = self.faults.error_status
        if status is not None or self._driver is None:
            self.counters.refused += 1
            exchange.respond(status or 503, b"fault injected", _PLAIN)
            return
        if self.faults.cut_responses:
            self.counters.refused += 1
            exchange.start_stream()
            exchange.break_off()
            return
        rank = rank_of(exchange.headers, self.address)
        if rank:
            self._run(exchange, partial(self._forward, exchange, rank))
            return
        try:
            request = self._api.parse(exchange.path, exchange.body, self._request_id(exchange))
        except ApiError as error:
            self.counters.refused += 1
            _refuse(exchange, error)
            return
        if has_stages(exchange.headers):
            self._run(exchange, partial(self._after_stages, exchange, request, self._driver))
        else:
            self._generate(exchange, request, self._driver)

    def _generate(self, exchange: Exchange, request: ApiRequest, driver: EngineDriver) -> None:
        self.counters.stages[stage_of(exchange.headers)] += 1
        self.counters.in_flight += 1
        Generation(exchange, request, driver, self.counters)

    def _run(self, exchange: Exchange, work: Callable[[], Awaitable[Outcome]]) -> None:
        """Run work that needs other servers in a task; cancel it if the client disconnects."""
        self.counters.in_flight += 1
        task = asyncio.create_task(_outcome_of(exchange, work), name=f"{self.name} stages")
        self._tasks.add(task)
        task.add_done_callback(self._count)

        def client_left() -> None:
            task.cancel()

        exchange.on_disconnect = client_left

    def _count(self, task: asyncio.Task[Outcome]) -> None:
        # In a callback, because a task cancelled before its first step runs no code of its own.
        self._tasks.discard(task)
        outcome = Outcome.ABORTED if task.cancelled() else task.result()
        counters = self.counters
        counters.in_flight -= outcome is not Outcome.HANDED_ON
        counters.aborted += outcome is Outcome.ABORTED
        counters.refused += outcome is Outcome.REFUSED
        counters.completed += outcome is Outcome.COMPLETED

    async def _forward(self, exchange: Exchange, rank: str) -> Outcome:
        self.counters.stages[Stage.FORWARDED] += 1
        return await forward(exchange, rank, self.name)

    async def _after_stages(
        self, exchange: Exchange, request: ApiRequest, driver: EngineDriver
    ) -> Outcome:
        served = await run_stages(exchange)
        stages = [*served, (Stage.DECODE, self.name)]
        exchange.common_headers += stages_header(stages)
        prefilled = any(stage is Stage.PREFILL for stage, _ in served)
        generation = replace(request.generation, prefilled=prefilled)
        self.counters.in_flight -= 1
        self._generate(exchange, replace(request, generation=generation), driver)
        return Outcome.HANDED_ON

    def _request_id(self, exchange: Exchange) -> str:
        given = exchange.headers.get(b"x-request-id")
        if given:
            return given.decode("latin-1")
        salt = f"{self._config.seed}/{self.name}/{self.counters.received}".encode()
        return blake2b(salt, digest_size=8).hexdigest()


async def _outcome_of(exchange: Exchange, work: Callable[[], Awaitable[Outcome]]) -> Outcome:
    try:
        return await work()
    except StageRefusedError as refused:
        exchange.respond(refused.status, refused.body)
    except ApiError as error:
        if exchange.started:
            exchange.break_off()
            return Outcome.ABORTED
        _refuse(exchange, error)
    return Outcome.REFUSED


def _refuse(exchange: Exchange, error: ApiError) -> None:
    exchange.respond(error.status, error_body(error, exchange.path))

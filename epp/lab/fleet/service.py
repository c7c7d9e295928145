"""The HTTP service of one fake server: a route for each path, and the faults of requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from hashlib import blake2b

import msgspec

from epp.lab.fleet.api import BODIES, ApiRequest
from epp.lab.fleet.config import EngineType
from epp.lab.fleet.driver import EngineDriver
from epp.lab.fleet.errors import VllmApiError
from epp.lab.fleet.exchange import Exchange
from epp.lab.fleet.faults import ServerFaults
from epp.lab.fleet.generation import Counters, Generation
from epp.lab.fleet.pages import PLAIN, Pages, Route, refuse
from epp.lab.fleet.process import FakeProcess
from epp.lab.fleet.request_entry import RequestEntry
from epp.lab.fleet.request_log import RequestLog
from epp.lab.fleet.sglang_format import GENERATE
from epp.lab.fleet.stages import (
    StageOutcome,
    StageRefusedError,
    WorkStage,
    forward,
    has_stages,
    rank_of,
    run_stages,
    stage_of,
    stages_header,
)

RANK = b"x-data-parallel-rank"


class Service:
    """Serves the requests to one process."""

    def __init__(
        self,
        process: FakeProcess,
        faults: ServerFaults,
        counters: Counters,
        log: RequestLog,
        *,
        address: str,
        worker: int,
        seed: int,
        event_sources: Callable[[], list[dict[str, object]]],
    ) -> None:
        self._process = process
        self._faults = faults
        self._counters = counters
        self._log = log
        self._address = address
        self._worker = worker
        self._seed = seed
        self._tasks: set[asyncio.Task[StageOutcome]] = set()
        self.pages = Pages(process, faults, counters, self._request_id, event_sources)
        """All paths but those of generation."""
        self._routes: dict[bytes, Route] = {
            **self.pages.routes,
            **dict.fromkeys(BODIES, (b"POST", self._serve_generation)),
        }
        if process.engine_type is not EngineType.SGLANG:
            del self._routes[GENERATE]

    def handle(self, exchange: Exchange) -> None:
        """Serve a request, now or later."""
        route = self._routes.get(exchange.path)
        if self._faults.hang or (self._faults.hang_generation and exchange.path in BODIES):
            self._hang(exchange)
        elif route is None:
            exchange.respond(404, b'{"detail":"Not Found"}')
        elif route[0] != exchange.method:
            exchange.respond(405, b'{"detail":"Method Not Allowed"}', extra=((b"allow", route[0]),))
        elif self._faults.loading and exchange.path not in BODIES:
            exchange.respond(503, b"loading the model", PLAIN)
        else:
            route[1](exchange)

    async def finish(self) -> None:
        """Wait for the requests at other servers, whose connections have been closed."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _hang(self, exchange: Exchange) -> None:
        if exchange.path in BODIES:
            entry = self._new_entry(exchange)
            self._counters.in_flight += 1
            exchange.on_disconnect = partial(self._hung_request_left, entry)

    def _hung_request_left(self, entry: RequestEntry) -> None:
        self._counters.in_flight -= 1
        self._counters.aborted += 1
        entry.ended("aborted")

    def _serve_generation(self, exchange: Exchange) -> None:
        entry = self._new_entry(exchange)
        faults = self._faults
        status = 503 if faults.loading else faults.error_status_of(self._counters.received)
        if status is not None:
            exchange.respond(status, b"fault injected", PLAIN)
            self._refused(entry, status)
            return
        if faults.cut_responses:
            exchange.start_stream()
            exchange.break_off()
            self._refused(entry, 200)
            return
        address = rank_of(exchange.headers, self._address)
        if address:
            self._run(exchange, entry, partial(self._forward, exchange, entry, address))
            return
        try:
            driver = self._process.driver_for(exchange.headers.get(RANK))
            request = self._process.api.parse(exchange.path, exchange.body, entry.request_id)
        except VllmApiError as error:
            refuse(exchange, error)
            self._refused(entry, error.status)
            return
        if has_stages(exchange.headers):
            work = partial(self._after_stages, exchange, entry, request, driver)
            self._run(exchange, entry, work)
        else:
            self._generate(exchange, entry, request, driver)

    def _generate(
        self, exchange: Exchange, entry: RequestEntry, request: ApiRequest, driver: EngineDriver
    ) -> None:
        entry.stage = stage_of(exchange.headers)
        self._counters.stages[entry.stage] += 1
        self._counters.in_flight += 1
        Generation(exchange, request, driver, self._counters, entry)

    def _refused(self, entry: RequestEntry, status: int) -> None:
        self._counters.refused += 1
        entry.ended("refused", status)

    def _run(
        self, exchange: Exchange, entry: RequestEntry, work: Callable[[], Awaitable[StageOutcome]]
    ) -> None:
        """Run work that needs other servers in a task; cancel it if the client disconnects."""
        self._counters.in_flight += 1
        name = f"{self._process.name} stages"
        task = asyncio.create_task(_outcome_of(exchange, work), name=name)
        self._tasks.add(task)
        task.add_done_callback(partial(self._count, entry))

        def client_left() -> None:
            task.cancel()

        exchange.on_disconnect = client_left

    def _count(self, entry: RequestEntry, task: asyncio.Task[StageOutcome]) -> None:
        # In a callback, because a task cancelled before its first step runs no code of its own.
        self._tasks.discard(task)
        outcome = StageOutcome.ABORTED if task.cancelled() else task.result()
        counters = self._counters
        counters.in_flight -= outcome is not StageOutcome.HANDED_ON
        counters.aborted += outcome is StageOutcome.ABORTED
        counters.refused += outcome is StageOutcome.REFUSED
        counters.completed += outcome is StageOutcome.COMPLETED
        if outcome is not StageOutcome.HANDED_ON:
            entry.ended(outcome.value)

    async def _forward(self, exchange: Exchange, entry: RequestEntry, address: str) -> StageOutcome:
        entry.stage = WorkStage.FORWARDED
        self._counters.stages[WorkStage.FORWARDED] += 1
        return await forward(exchange, address, self._process.name)

    async def _after_stages(
        self, exchange: Exchange, entry: RequestEntry, request: ApiRequest, driver: EngineDriver
    ) -> StageOutcome:
        served = await run_stages(exchange)
        stages = [*served, (WorkStage.DECODE, self._process.name)]
        exchange.common_headers += stages_header(stages)
        prefilled = any(stage is WorkStage.PREFILL for stage, _ in served)
        generation = msgspec.structs.replace(request.generation, prefilled=prefilled)
        self._counters.in_flight -= 1
        self._generate(exchange, entry, replace(request, generation=generation), driver)
        return StageOutcome.HANDED_ON

    def _new_entry(self, exchange: Exchange) -> RequestEntry:
        self._counters.received += 1
        self._log.arrived()
        return RequestEntry(
            self._log,
            self._process,
            request_id=self._request_id(exchange),
            worker=self._worker,
            path=exchange.path.decode("latin-1"),
            arrived_at=time.time(),
        )

    def _request_id(self, exchange: Exchange) -> str:
        given = exchange.headers.get(b"x-request-id")
        if given:
            return given.decode("latin-1")
        salt = f"{self._seed}/{self._process.name}/{self._counters.received}".encode()
        return blake2b(salt, digest_size=8).hexdigest()


async def _outcome_of(
    exchange: Exchange, work: Callable[[], Awaitable[StageOutcome]]
) -> StageOutcome:
    try:
        return await work()
    except StageRefusedError as refused:
        exchange.respond(refused.status, refused.body)
    except VllmApiError as error:
        if exchange.started:
            exchange.break_off()
            return StageOutcome.ABORTED
        refuse(exchange, error)
    return StageOutcome.REFUSED

"""The director: one request, top to bottom.

Parsing, data producers, scheduling and the reservation happen in one synchronous call, so choosing
an endpoint and counting the request there cannot be torn apart by another request.
"""

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter

import structlog

from epp.observability import CanonicalLine, Metrics
from epp.parsing import ParseError, parse
from epp.request_control.errors import (
    AllFilteredError,
    BadRequestError,
    InternalError,
    NoCandidatesError,
    RequestError,
)
from epp.request_control.exchange import Exchange
from epp.request_control.plugins import DataProducer, EndCause, PreRequest, ResponseComplete
from epp.request_control.request_line import finished_line
from epp.scheduling import CycleState, Endpoint, LLMRequest, NoEndpointsError, Scheduler

FAIRNESS_HEADERS = ("x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id")
DEFAULT_FAIRNESS_ID = "default-flow"


class Director:
    """Takes whole HTTP requests and returns exchanges."""

    def __init__(
        self,
        *,
        pool: Callable[[], Sequence[Endpoint]],
        find_address: Callable[[str], Endpoint | None],
        scheduler: Scheduler,
        metrics: Metrics,
        clock: Callable[[], float],
        producers: Sequence[DataProducer] = (),
        pre_request: Sequence[PreRequest] = (),
        response_complete: Sequence[ResponseComplete] = (),
    ) -> None:
        """Wire the director.

        Args:
            pool: Returns the present snapshot of endpoints.
            find_address: Returns the pool's endpoint at ``ip:port``, None if it has none.
            scheduler: Chooses among them.
            metrics: Where requests are counted.
            clock: Monotonic seconds, the clock that endpoint loads are kept in.
            producers: In the order in which their data depends on each other.
            pre_request: Told of each decision, in this order.
            response_complete: Told of each end, in this order.
        """
        self._pool = pool
        self._find_address = find_address
        self._scheduler = scheduler
        self._metrics = metrics
        self._clock = clock
        self._producers = tuple(producers)
        self._pre_request = tuple(pre_request)
        self._response_complete = tuple(response_complete)
        self._schedule_seconds = metrics.scheduler_e2e.observe
        self._attempts: dict[tuple[str, str, str], Callable[[], None]] = {}
        self._log = structlog.get_logger()
        self._finished = CanonicalLine("request finished")
        self.in_flight = 0
        """Exchanges not yet closed."""

    def handle(
        self, *, request_id: str, headers: Mapping[str, str], body: bytes, received_at: float
    ) -> Exchange:
        """Parse, schedule and reserve.

        Args:
            request_id: Id of the HTTP request.
            headers: Its headers by lower-case name, pseudo headers included.
            body: Its whole body; b"" for none.
            received_at: When its headers came, in seconds of the clock.

        Raises:
            RequestError: What to answer instead; it is counted and logged already.
        """
        request: LLMRequest | None = None
        try:
            try:
                request = parse(request_id, headers.get(":path", ""), headers, body)
            except ParseError as error:
                raise BadRequestError(str(error)) from error
            return self._decide(request, received_at)
        except RequestError as error:
            self._refused(error, request_id, request, headers, received_at)
            raise
        except Exception as error:
            self._log.exception("request failed inside the EPP", request_id=request_id)
            self._metrics.internal_faults.inc()
            fault = InternalError(
                f"the endpoint picker failed on this request; its log names request {request_id}"
            )
            self._refused(fault, request_id, request, headers, received_at)
            raise fault from error

    def _decide(self, request: LLMRequest, received_at: float) -> Exchange:
        endpoints = self._pool()
        if not endpoints:
            raise NoCandidatesError(
                "the pool has no endpoint: is discovery configured and running?"
            )
        state = CycleState()
        for producer in self._producers:
            producer.prepare(request, state)
        for producer in self._producers:
            producer.attach(request, endpoints, state)
        began = perf_counter()
        try:
            result = self._scheduler.schedule(request, endpoints, state)
        except NoEndpointsError as error:
            self._attempted("failure", request.target_model, None)
            raise AllFilteredError(str(error)) from error
        except Exception:
            self._attempted("failure", request.target_model, None)
            raise
        self._schedule_seconds(perf_counter() - began)
        exchange = Exchange(
            self,
            request=request,
            state=state,
            result=result,
            metrics=self._metrics.for_request(
                request.model, request.target_model, fairness_id(request.headers), request.priority
            ),
            received_at=received_at,
            decided_at=self._clock(),
        )
        try:
            for hook in self._pre_request:
                hook.pre_request(request, result, state)
        except BaseException:
            exchange.reservation.release(self._clock())
            raise
        self._attempted("success", request.target_model, exchange.endpoint)
        self.in_flight += 1
        exchange.metrics.total.inc()
        exchange.metrics.running.inc()
        exchange.metrics.size.observe(request.body_bytes)
        return exchange

    def served(self, exchange: Exchange, address: str) -> None:
        """Move ``exchange`` to the endpoint at ``address``, if the pool has it."""
        endpoint = self._find_address(address)
        if endpoint is not None:
            exchange.reservation.move(endpoint.load, self._clock())
            exchange.endpoint = endpoint

    def finish(self, exchange: Exchange, cause: EndCause) -> None:
        """Release the reservation, tell the plugins, count and log; once per exchange."""
        now = self._clock()
        exchange.reservation.release(now)
        self.in_flight -= 1
        metrics = exchange.metrics
        metrics.running.dec()
        metrics.duration.observe(now - exchange.received_at)
        request, endpoint = exchange.request, exchange.endpoint
        for hook in self._response_complete:
            try:
                hook.response_complete(request, endpoint, cause, exchange.state)
            except Exception:
                # The end of a request has nobody left to answer to; the others still run.
                self._log.exception("plugin failed at a request's end", plugin=hook.name)
                self._metrics.internal_faults.inc()
        if self._finished.enabled:
            self._finished.write(finished_line(exchange, cause, now))

    def _refused(
        self,
        error: RequestError,
        request_id: str,
        request: LLMRequest | None,
        headers: Mapping[str, str],
        received_at: float,
    ) -> None:
        model = request.model if request else ""
        target = request.target_model if request else ""
        labels = (model, target, fairness_id(headers), request.priority if request else 0)
        self._metrics.for_request(*labels).error(error.code)
        self._log.info(
            "request refused",
            request_id=request_id,
            model=model,
            target_model=target,
            status=error.status,
            stage=error.stage,
            reason=error.drop_reason or error.code,
            error=str(error),
            duration_seconds=round(self._clock() - received_at, 6),
            outcome=EndCause.REFUSED.value,
        )

    def _attempted(self, status: str, target_model: str, endpoint: Endpoint | None) -> None:
        address = endpoint.address if endpoint else ""
        # An address may pass to another pod, whose name is a label of its own.
        key = (endpoint.name if endpoint else "", address, target_model)
        count = self._attempts.get(key) if endpoint else None
        if count is None:
            namespace, _, name = endpoint.name.rpartition("/") if endpoint else ("", "", "")
            port = address.rpartition(":")[2]
            capped = self._metrics.capped_model(target_model)
            count = self._metrics.scheduler_attempts.labels(
                status, capped, name, namespace, port
            ).inc
            if endpoint and capped == target_model:
                self._attempts[key] = count
        count()


def fairness_id(headers: Mapping[str, str]) -> str:
    """Return the flow that the client says its request belongs to."""
    for header in FAIRNESS_HEADERS:
        if value := headers.get(header):
            return value
    return DEFAULT_FAIRNESS_ID

"""The model servers of a simulation: engines driven by timers of the virtual clock, with faults."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Protocol

from epp.lab.fleet import Engine, EngineConfig, FinishReason, GenerationRequest, Sequence
from epp.lab.fleet.faults import ServerFaults
from epp.lab.results import ServerAccount
from epp.lab.simulation.forecasts import NEVER, Forecast, Outlook
from epp.lab.simulation.prompts import SimulatedRequest
from epp.lab.simulation.routing import Tokens
from epp.lab.simulation.virtual_loop import VirtualLoop, VirtualTimer

UNAVAILABLE = 503
_OK, _ERROR, _BAD_REQUEST, _BAD_GATEWAY = 200, 400, 400, 502


class ConnectionRefusedByServerError(Exception):
    """The server refuses connections."""


class SimulatedExchange(ABC):
    """One request to a server, which calls these methods as the response proceeds.

    Args:
        request: The request.
        output_tokens: How many tokens to generate.
        prefiller: Another server, which computes the prompt first.
    """

    __slots__ = (
        "output_tokens",
        "prefill",
        "prefill_hits",
        "prefiller",
        "request",
        "sequence",
    )

    def __init__(
        self,
        request: SimulatedRequest,
        output_tokens: int,
        prefiller: "SimulatedServer | None" = None,
    ) -> None:
        self.request = request
        self.output_tokens = output_tokens
        self.prefiller = prefiller
        self.prefill: SimulatedExchange | None = None
        """The request to the other server, until it has answered."""
        self.prefill_hits: int | None = None
        """Prompt tokens that the other server had in its cache; None if there is no other."""
        self.sequence: Sequence | None = None
        """Its state in the engine; None before the server takes it, and if it hangs."""

    @abstractmethod
    def head(self, status: int) -> None:
        """Called when the response begins."""

    @abstractmethod
    def first_token(self) -> None:
        """Called with the first token."""

    @abstractmethod
    def end(self, tokens: Tokens, account: ServerAccount) -> None:
        """Called with the last token."""

    @abstractmethod
    def cut(self) -> None:
        """Called instead of `end` if the server closes the connection."""


class _Prefill(SimulatedExchange):
    """The request to the server that computes the prompt for another exchange."""

    __slots__ = ("_done", "_failed")

    def __init__(
        self,
        request: SimulatedRequest,
        done: Callable[[Tokens], None],
        failed: Callable[[int], None],
    ) -> None:
        super().__init__(request, output_tokens=1)
        self._done = done
        self._failed = failed

    def head(self, status: int) -> None:
        if status >= _ERROR:
            self._failed(status)

    def first_token(self) -> None:
        """Wait for the end, which comes at once."""

    def end(self, tokens: Tokens, account: ServerAccount) -> None:
        del account
        self._done(tokens)

    def cut(self) -> None:
        self._failed(_BAD_GATEWAY)


class Watcher(Protocol):
    """An observer of a server that may defer its observations."""

    def state_changes(self) -> None:
        """Called before the engine's state or the faults change: make deferred observations."""

    def faults_changed(self) -> None:
        """Called after the faults of the server have changed."""


class SimulatedServer:
    """One model server."""

    def __init__(self, index: int, config: EngineConfig, loop: VirtualLoop) -> None:
        self.index = index
        self.name = f"worker-{index}"
        """Name in records."""
        self.address = f"10.0.{index >> 8}.{index & 255}:8000"
        """The address, `ip:port`."""
        self.engine = Engine(config)
        """The engine, a new one after each restart."""
        self.faults = ServerFaults()
        """Its current faults."""
        self.labels: Mapping[str, str] = {}
        """Its labels, from which an endpoint picker reads its role."""
        self.requests = 0
        """Requests that it has taken."""
        self.watchers: list[Watcher] = []
        """Observers that are notified of changes."""
        self._config = config
        self._loop = loop
        self._open: dict[SimulatedExchange, None] = {}
        self._awaiting: dict[SimulatedExchange, None] = {}
        self._timer: VirtualTimer | None = None
        self._due: float | None = None

    @property
    def in_flight(self) -> int:
        """Requests that have not ended."""
        return len(self._open)

    @property
    def is_hanging(self) -> bool:
        """Whether it accepts all requests and does nothing."""
        return self.faults.hang

    def engine_at(self, now: float) -> Engine:
        """Return the engine, advanced to `now`, which must be the current time."""
        due = self._due
        if due is not None and due <= now:
            self.advance()
        return self.engine

    def outlook(self, now: float) -> Outlook | None:
        """Return the outlook from the real state; None if the server does not serve requests."""
        faults = self.faults
        if faults.refuse or faults.loading or faults.hang or faults.hang_generation:
            return None
        self.advance()
        return Outlook(self.engine, now)

    def forecast(self, request: SimulatedRequest, now: float) -> Forecast:
        """Return the forecast for a request that came now, from the real state."""
        outlook = self.outlook(now)
        return NEVER if outlook is None else outlook.of(request)

    def submit(self, exchange: SimulatedExchange) -> None:
        """Take a request.

        Raises:
            ConnectionRefusedByServerError: It refuses connections.
        """
        faults = self.faults
        if faults.refuse:
            raise ConnectionRefusedByServerError
        self.requests += 1
        if faults.hang or faults.hang_generation:
            self._open[exchange] = None
        elif faults.loading:
            exchange.head(UNAVAILABLE)
        elif (status := faults.error_status_of(self.requests)) is not None:
            exchange.head(status)
        elif faults.cut_responses:
            exchange.head(_OK)
            exchange.cut()
        elif not self._fits(exchange):
            exchange.head(_BAD_REQUEST)
        else:
            self._open[exchange] = None
            if exchange.prefiller is None:
                self._respond(exchange)
            else:
                self._prefill(exchange, exchange.prefiller)

    def abort(self, exchange: SimulatedExchange) -> None:
        """End a request whose client has left; does nothing once it has ended."""
        self._change()
        _abort_prefill(exchange)
        self._awaiting.pop(exchange, None)
        if self._open.pop(exchange, self) is None and exchange.sequence is not None:
            self.engine.abort(exchange.sequence, self._loop.time())
            self._arm()

    def inject(self, faults: ServerFaults) -> None:
        """Replace the server's faults."""
        self._change()
        before, self.faults = self.faults, faults
        if faults.speed != before.speed:
            self.engine.change_speed(faults.speed)
        if faults.restarts != before.restarts:
            self._restart()
        if before.hang and not faults.hang and self.engine.step_ends_at is not None:
            self.engine.step_ends_at = max(self.engine.step_ends_at, self._loop.time())
        self._arm()
        for watcher in self.watchers:
            watcher.faults_changed()

    def advance(self) -> None:
        """Advance the engine to the current time."""
        now = self._loop.time()
        engine = self.engine
        if self.faults.hang or engine.step_ends_at is None or engine.step_ends_at > now:
            return
        for watcher in self.watchers:
            watcher.state_changes()
        engine.run_until(now)
        if self._awaiting:
            self._announce_first_tokens()
        self._arm()

    def _fits(self, exchange: SimulatedExchange) -> bool:
        """Return whether the model has room for prompt and output, else vLLM answers 400."""
        prompt_tokens = exchange.request.traffic.prompt_tokens
        return prompt_tokens + exchange.output_tokens <= self._config.max_model_len

    def _prefill(self, exchange: SimulatedExchange, prefiller: "SimulatedServer") -> None:
        """Let another server compute the prompt, as llm-d's routing sidecar does, then respond."""

        def done(tokens: Tokens) -> None:
            exchange.prefill, exchange.prefill_hits = None, tokens.cached
            self._respond(exchange, is_prefilled=True)

        def failed(status: int) -> None:
            exchange.prefill = None
            del self._open[exchange]
            exchange.head(status)

        exchange.prefill = _Prefill(exchange.request, done, failed)
        try:
            prefiller.submit(exchange.prefill)
        except ConnectionRefusedByServerError:
            failed(_BAD_GATEWAY)

    def _respond(self, exchange: SimulatedExchange, *, is_prefilled: bool = False) -> None:
        exchange.head(_OK)
        if exchange in self._open:  # the gateway may have ended it at its head
            self._generate(exchange, is_prefilled=is_prefilled)

    def _change(self) -> None:
        """Advance the engine to the current time, before something else changes its state."""
        for watcher in self.watchers:
            watcher.state_changes()
        self.advance()

    def _generate(self, exchange: SimulatedExchange, *, is_prefilled: bool) -> None:
        self._change()
        traffic = exchange.request.traffic
        generation = GenerationRequest(
            id=exchange.request.id,
            num_prompt_tokens=traffic.prompt_tokens,
            block_keys=exchange.request.keys(self._config.block_size),
            max_tokens=exchange.output_tokens,
            prefilled=is_prefilled,
            adapter=traffic.adapter or None,
            ignore_eos=True,
        )
        self._awaiting[exchange] = None
        exchange.sequence = self.engine.submit(
            generation, self._loop.time(), on_end=partial(self._ended, exchange)
        )
        self._arm()

    def _ended(self, exchange: SimulatedExchange, sequence: Sequence) -> None:
        if sequence.finish_reason is FinishReason.ABORT:
            return
        if self._awaiting.pop(exchange, self) is None:
            exchange.first_token()
        self._open.pop(exchange, None)
        exchange.sequence = None  # it refers to the exchange
        exchange.end(
            Tokens(sequence.prompt_tokens, sequence.generated, sequence.cached_tokens),
            self._account(sequence, exchange.prefill_hits),
        )

    def _account(self, sequence: Sequence, prefill_hits: int | None) -> ServerAccount:
        """Return the account of a request; the cache hits are those of the prefill's server."""
        return ServerAccount(
            worker=self.name,
            arrived_at=sequence.arrived_at,
            admitted_at=sequence.admitted_at,
            first_token_at=sequence.first_token_at,
            finished_at=sequence.last_token_at,
            cached_tokens=sequence.cached_tokens if prefill_hits is None else prefill_hits,
            preemptions=sequence.preemptions,
        )

    def _announce_first_tokens(self) -> None:
        # A callback for each token would make the engine go through every step.
        begun = [each for each in self._awaiting if each.sequence and each.sequence.generated]
        for exchange in begun:
            if self._awaiting.pop(exchange, self) is None:
                exchange.first_token()

    def _restart(self) -> None:
        """End all requests, and begin with an empty engine."""
        cut, self._open = self._open, {}
        self._awaiting.clear()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._due = None
        self.engine = Engine(self._config)
        self.engine.change_speed(self.faults.speed)
        for exchange in cut:
            _abort_prefill(exchange)
            exchange.cut()

    def _arm(self) -> None:
        """Set the timer to the next event of the engine."""
        due = None if self.faults.hang else self.engine.next_event_at
        if due == self._due:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due = due
        self._timer = None if due is None else self._loop.set_timer(due, self._tick)

    def _tick(self) -> None:
        self._timer = self._due = None
        self.advance()
        self._arm()


def _abort_prefill(exchange: SimulatedExchange) -> None:
    prefill, exchange.prefill = exchange.prefill, None
    if prefill is not None and exchange.prefiller is not None:
        exchange.prefiller.abort(prefill)


def simulated_servers(engines: Iterable[EngineConfig], loop: VirtualLoop) -> list[SimulatedServer]:
    """Return a server for each engine."""
    return [SimulatedServer(index, config, loop) for index, config in enumerate(engines)]

"""A director whose decisions the test delays and changes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from epp.ext_proc import ExtProcService, ExtProcSettings, OneHandler
from epp.request_control import (
    UNCOUNTED,
    Director,
    EndCause,
    PendingDecision,
    RequestError,
    RequestMemory,
    RoutedRequest,
)
from epp.tracing import RequestTrace
from tools.harness.ext_proc import LEAN, Envoy, Modes
from tools.harness.request_control import Epp

Change = Callable[[RoutedRequest], None]


class HeldDecision(PendingDecision):
    """A pending decision that the test makes."""

    def __init__(self, decide: Callable[[], RoutedRequest]) -> None:
        self._decide = decide
        self._callback: Callable[[RoutedRequest | RequestError], None] | None = None
        self.cancelled: list[EndCause] = []

    @property
    def is_awaited(self) -> bool:
        """Whether the stream still waits for the decision."""
        return self._callback is not None and not self.cancelled

    def then(self, callback: Callable[[RoutedRequest | RequestError], None]) -> None:
        self._callback = callback

    def cancel(self, cause: EndCause) -> None:
        self.cancelled.append(cause)

    def decide(self) -> None:
        """Make the decision and pass it to the stream."""
        callback, self._callback = self._callback, None
        assert callback is not None
        assert not self.cancelled
        try:
            outcome: RoutedRequest | RequestError = self._decide()
        except RequestError as error:
            outcome = error
        callback(outcome)


class DecidedAtOnce(HeldDecision):
    """A pending decision that is made as soon as the stream waits for it."""

    def then(self, callback: Callable[[RoutedRequest | RequestError], None]) -> None:
        super().then(callback)
        self.decide()


@dataclass
class Holding:
    """Delays the director's decisions until the test makes them, and may change them."""

    director: Director
    kind: type[HeldDecision] | None = HeldDecision
    """Class of the decision that ``handle`` returns; None decides at once."""
    change: Change = lambda _: None
    """Applied to every exchange."""
    held: list[HeldDecision] = field(default_factory=list)

    def handle(
        self,
        *,
        request_id: str,
        headers: Mapping[str, str],
        body: bytes | memoryview,
        received_at: float,
        subset: Sequence[str] | None = None,
        memory: RequestMemory = UNCOUNTED,
        trace: RequestTrace | None = None,
    ) -> RoutedRequest | PendingDecision:
        def decide() -> RoutedRequest:
            exchange = self.director.handle(
                request_id=request_id,
                headers=headers,
                body=bytes(body),
                received_at=received_at,
                subset=subset,
                memory=memory,
                trace=trace,
            )
            assert isinstance(exchange, RoutedRequest)
            self.change(exchange)
            return exchange

        if self.kind is None:
            return decide()
        self.held.append(self.kind(decide))
        return self.held[-1]

    def ended_early(
        self,
        why: RequestError | EndCause,
        *,
        request_id: str,
        headers: Mapping[str, str],
        received_at: float,
    ) -> None:
        self.director.ended_early(
            why, request_id=request_id, headers=headers, received_at=received_at
        )

    def priority_of(self, headers: Mapping[str, str]) -> int:
        return self.director.priority_of(headers)


class PatientEnvoy(Envoy):
    """A stream whose decision the test delays."""

    def __init__(
        self,
        epp: Epp,
        modes: Modes | None = LEAN,
        *,
        kind: type[HeldDecision] | None = HeldDecision,
        change: Change = lambda _: None,
        settings: ExtProcSettings | None = None,
        service: ExtProcService | None = None,
    ) -> None:
        self.handler = Holding(epp.director, kind, change)
        service = service or ExtProcService(
            OneHandler(self.handler), epp.clock, settings=settings, metrics=epp.metrics
        )
        super().__init__(epp, modes, service)

    @property
    def held(self) -> HeldDecision:
        """The only decision requested so far."""
        (held,) = self.handler.held
        return held

    def decide(self) -> None:
        """Make the decision."""
        self.wire.call(self.held.decide)

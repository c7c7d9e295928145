"""A director whose decisions a test delays and changes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from epp.ext_proc import ExtProcService, ExtProcSettings
from epp.request_control import (
    UNCOUNTED,
    Director,
    EndCause,
    Exchange,
    PendingDecision,
    RequestError,
    RequestMemory,
)
from tools.harness.ext_proc import LEAN, Envoy, Modes
from tools.harness.request_control import Epp

Change = Callable[[Exchange], None]


class HeldDecision(PendingDecision):
    """A request whose decision is made when the test says so."""

    def __init__(self, decide: Callable[[], Exchange]) -> None:
        self._decide = decide
        self._callback: Callable[[Exchange | RequestError], None] | None = None
        self.cancelled: list[EndCause] = []

    @property
    def is_awaited(self) -> bool:
        """Whether somebody still wants the decision."""
        return self._callback is not None and not self.cancelled

    def then(self, callback: Callable[[Exchange | RequestError], None]) -> None:
        self._callback = callback

    def cancel(self, cause: EndCause) -> None:
        self.cancelled.append(cause)

    def decide(self) -> None:
        """Make the decision and tell of it."""
        callback, self._callback = self._callback, None
        assert callback is not None
        assert not self.cancelled
        try:
            outcome: Exchange | RequestError = self._decide()
        except RequestError as error:
            outcome = error
        callback(outcome)


class DecidedAtOnce(HeldDecision):
    """A decision that is there as soon as somebody asks for it."""

    def then(self, callback: Callable[[Exchange | RequestError], None]) -> None:
        super().then(callback)
        self.decide()


@dataclass
class Holding:
    """Asks the director, but only when the test lets it; may change what the director returns."""

    director: Director
    kind: type[HeldDecision] | None = HeldDecision
    """What it returns; None for exchanges at once."""
    change: Change = lambda _: None
    """Done to every exchange."""
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
    ) -> Exchange | PendingDecision:
        def decide() -> Exchange:
            exchange = self.director.handle(
                request_id=request_id,
                headers=headers,
                body=bytes(body),
                received_at=received_at,
                subset=subset,
                memory=memory,
            )
            assert isinstance(exchange, Exchange)
            self.change(exchange)
            return exchange

        if self.kind is None:
            return decide()
        self.held.append(self.kind(decide))
        return self.held[-1]

    def priority_of(self, headers: Mapping[str, str]) -> int:
        return self.director.priority_of(headers)


class PatientEnvoy(Envoy):
    """A stream whose decision the test holds back."""

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
            self.handler, epp.clock, settings=settings, metrics=epp.metrics
        )
        super().__init__(epp, modes, service)

    @property
    def held(self) -> HeldDecision:
        """The one decision asked for."""
        (held,) = self.handler.held
        return held

    def decide(self) -> None:
        """Have the decision made."""
        self.wire.call(self.held.decide)
